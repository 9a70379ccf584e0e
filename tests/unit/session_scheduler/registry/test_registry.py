import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import PluginArguments, PluginConfig, Profile, SchedulerConfig, parse_config
from session_scheduler.errors import InputError
from session_scheduler.hookspecs import HOOKS
from session_scheduler.registry import registry
from session_scheduler.registry.moved import MOVED
from session_scheduler.registry.registry import (
    PluginAmbiguousError,
    PluginArgumentsError,
    PluginConstructionError,
    PluginHooksError,
    PluginImportError,
    PluginLoadError,
    PluginNotFoundError,
    PluginVersionError,
    Registry,
    register_plugin_builder,
)

HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
MODULE = """
from session_scheduler import hookimpl
from session_scheduler.config.settings import PluginArguments

class Arguments(PluginArguments):
    spot_label: str = "spot"

class Plugin:
    \"\"\"Distinguishes spot nodes.

    More.
    \"\"\"
    Arguments = Arguments
    api_version = "2"
    {extra}
    def __init__(self, arguments):
        self.arguments = arguments
        {init}
    @hookimpl
    def prefilter(self, group): ...
"""


@pytest.fixture(autouse=True)
def _no_builders(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "_builders", {})


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a distribution with one plugin on a path of its own."""

    def install(
        name="acme-spot", version="1.2", plugin="spot", module="acme_spot", extra="", init="", text=MODULE
    ) -> None:
        place = tmp_path / name
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[session_scheduler.plugins]\n{plugin} = {module}:Plugin\n")
        (place / f"{module}.py").write_text(text.replace("{extra}", extra).replace("{init}", init))
        monkeypatch.syspath_prepend(place)
        monkeypatch.delitem(sys.modules, module, raising=False)

    yield install
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[module]


def _profile(*plugins: PluginConfig) -> Profile:
    return Profile(defaults=False, plugins=plugins)


def _load(name: str, **args: object) -> registry.LoadedPlugin:
    (plugin,) = Registry(BUILTIN).load_plugins(_profile(PluginConfig(name=name, args=args)))
    return plugin


def test_a_plugin_of_another_distribution_is_built_with_its_typed_arguments(distribution):
    distribution()
    plugin = _load("spot", spotLabel="x")
    instance: Any = plugin.instance
    assert instance.arguments.spot_label == "x"
    assert str(plugin.source) == "plugin spot (acme-spot 1.2)"


def test_a_plugin_of_a_distribution_says_which_hooks_it_is_made_for(distribution):
    distribution(text=MODULE.replace('    api_version = "2"\n', ""))
    with pytest.raises(
        PluginVersionError,
        match=r"plugin spot \(acme-spot 1.2\) declares no version of the hooks; add `api_version = '2'`",
    ):
        _load("spot")


def test_what_is_not_named_is_not_imported(distribution):
    distribution(text="raise RuntimeError('imported')")
    assert [plugin.name for plugin in Registry(BUILTIN).load_plugins(_profile(PluginConfig(name="NodeName")))] == [
        "NodeName"
    ]
    assert "acme_spot" not in sys.modules


def test_plugins_come_in_the_order_of_the_configuration_with_its_weights():
    plugins = Registry(BUILTIN).load_plugins(
        _profile(PluginConfig(name="NodeResourcesFit", weight=5), PluginConfig(name="NodeName"))
    )
    assert [(plugin.name, plugin.weight) for plugin in plugins] == [("NodeResourcesFit", 5), ("NodeName", None)]


def test_the_default_list_is_the_built_in_plugins_without_optional_ones_and_the_product_s_own():
    assert [*BUILTIN][-2:] == ["GpuFragmentation", "NodeResourceTopologyMatch"]
    assert Registry(BUILTIN).default_plugins() == (*[*BUILTIN][:-2], "fluence")


@pytest.mark.parametrize("name", list(BUILTIN))
def test_every_built_in_plugin_loads_without_arguments(name: str):
    assert isinstance(_load(name).instance, BUILTIN[name])


def test_wrong_arguments_of_a_built_in_plugin_are_told_with_their_path_in_the_file():
    text = HEAD + "profiles: [{plugins: [{name: NodeName}, {name: NodeResourcesFit, args: {scoringStrategi: 1}}]}]"
    with pytest.raises(PluginArgumentsError) as refused:
        Registry(BUILTIN).load_plugins(parse_config(text, "f.yaml").profiles[0])
    (line,) = refused.value.messages
    start = "f.yaml: profiles[0].plugins[1].args.scoringStrategi: unknown field; did you mean scoringStrategy?"
    assert line.startswith(f"{start} [plugin NodeResourcesFit (fluence-scheduler ")


def test_arguments_for_a_plugin_that_takes_none_are_refused():
    with pytest.raises(PluginArgumentsError, match=r"plugins\[0\]\.args: the plugin has no arguments; remove them"):
        _load("NodeName", x=1)


def test_a_registered_builder_gets_the_configuration_s_arguments_as_they_are():
    register_plugin_builder("mine", lambda args: type("Mine", (), {"args": args})())
    instance: Any = _load("mine", a="1").instance
    assert instance.args == {"a": "1"}


def test_a_registered_class_is_built_with_its_typed_arguments():
    class Typed:
        class Arguments(PluginArguments):
            count: int

        def __init__(self, arguments):
            self.count = arguments.count

    register_plugin_builder("typed", Typed)
    instance: Any = _load("typed", count=2).instance
    assert instance.count == 2
    with pytest.raises(PluginArgumentsError, match=r"args\.count: is missing; add it \[plugin typed"):
        _load("typed")


def test_a_registered_builder_replaces_the_one_before_it_and_a_built_in_plugin():
    register_plugin_builder("NodeName", lambda _: "first")
    register_plugin_builder("NodeName", lambda _: "second")
    assert _load("NodeName").instance == "second"


def test_a_missing_plugin_is_told_with_its_place_and_the_name_that_may_be_meant(distribution):
    distribution()
    with pytest.raises(PluginNotFoundError, match=r"plugins\[0\]: no plugin 'spott'.*did you mean spot\?"):
        _load("spott")
    with pytest.raises(PluginNotFoundError, match=r"install its distribution, or use one of .*NodeName.*spot"):
        _load("quantum-annealer-bridge")


def test_switching_off_what_is_not_on_is_a_mistake():
    text = HEAD + "profiles: [{plugins: [{name: NodeAfinity, enabled: false}]}]"
    with pytest.raises(PluginNotFoundError) as refused:
        Registry(BUILTIN).load_plugins(parse_config(text, "f").profiles[0])
    line = (
        "f: profiles[0].plugins[0]: 'NodeAfinity' is not a default plugin, so it is not enabled; "
        "did you mean NodeAffinity?"
    )
    assert refused.value.messages == (line,)


def test_a_name_that_two_distributions_offer_is_refused(distribution):
    distribution()
    distribution(name="other-spot", version="3.0", module="acme_other")
    with pytest.raises(PluginAmbiguousError, match=r"'spot' is offered by .*; uninstall one") as refused:
        _load("spot")
    assert "acme-spot 1.2" in str(refused.value)
    assert "other-spot 3.0" in str(refused.value)


def test_a_distribution_cannot_take_a_built_in_plugin_s_name(distribution):
    distribution(plugin="NodeName")
    with pytest.raises(PluginAmbiguousError, match=r"fluence-scheduler .* and acme-spot 1\.2"):
        _load("NodeName")


@pytest.mark.parametrize(
    ("old", "advice"),
    [
        ("from session_scheduler.kube_api import KubeApi",
         "session_scheduler.kube_api moved to session_scheduler.sdk.dynamic_client; import its names from there"),
        ("import session_scheduler.model.bindings",
         "session_scheduler.model.bindings moved to session_scheduler.sdk.bindings; import its names from there"),
        ("from session_scheduler import stopping",
         "session_scheduler.stopping moved to session_scheduler.sdk.signals; import its names from there"),
        ("from session_scheduler.config import PluginArguments",
         "session_scheduler.config moved to session_scheduler.config.settings; import its names from there"),
        ("from session_scheduler.session import Session",
         "session_scheduler.session moved to session_scheduler; import its names from there"),
        ("from session_scheduler.waking import Waking",
         "session_scheduler.waking moved to session_scheduler.engine, which is internal; use the names in "
         "docs/reference/public-names.md"),
    ],
)  # fmt: skip
def test_a_plugin_that_imports_a_module_by_its_old_name_is_told_the_new_one(distribution, old, advice):
    distribution(text=old)
    with pytest.raises(PluginImportError) as refused:
        _load("spot")
    assert refused.value.messages == (f"plugin spot (acme-spot 1.2) cannot be imported: {advice}",)


def test_every_module_that_a_plugin_is_sent_to_is_there_and_the_old_one_is_not():
    for old, new in MOVED.items():
        import_module(new)
        with pytest.raises(ImportError):
            exec(f"from {old} import nothing_of_that_name")


def test_a_failing_import_of_anything_else_is_told_as_it_is(distribution):
    distribution(text="from session_scheduler.hookspecs import nothing_of_that_name")
    with pytest.raises(PluginImportError, match=r"cannot be imported: ImportError: .*; fix or reinstall it"):
        _load("spot")


@pytest.mark.parametrize(
    ("broken", "error", "problem"),
    [
        (
            {"text": "import nothing_of_that_name"},
            PluginImportError,
            r"imported: ModuleNotFoundError: .* at acme_spot\.py:1; fix",
        ),
        ({"text": "x = 1"}, PluginImportError, "cannot be imported: AttributeError"),
        (
            {"text": "raise OSError('no disk')"},
            PluginImportError,
            r"imported: OSError: no disk at acme_spot\.py:1; fix",
        ),
        (
            {"extra": "api_version = '0'"},
            PluginVersionError,
            "is built for version 0 of the hooks, but this scheduler has 2",
        ),
        (
            {"init": "raise KeyError('x')"},
            PluginConstructionError,
            r"cannot be instantiated: KeyError: 'x' at acme_spot\.py:18; check its arguments",
        ),
        (
            {"extra": "@hookimpl\n    def prefiltre(self, group): ..."},
            PluginHooksError,
            "has a hook that does not match its specification: .*prefiltre",
        ),
        (
            {"extra": "@hookimpl\n    def filter(self, knots): ..."},
            PluginHooksError,
            "has a hook that does not match its specification: .*knots",
        ),
        (
            {"extra": "@hookimpl\n    def prebind(self, binding): ..."},
            PluginHooksError,
            "has a hook prebind that must be declared with `async def`",
        ),
        (
            {"extra": "@hookimpl\n    async def why(self): ..."},
            PluginHooksError,
            "has a hook why that must be declared with `def`",
        ),
        (
            {"extra": "def filter(self, mask): ..."},
            PluginHooksError,
            r"has a method Plugin\.filter, which .* @hookimpl",
        ),
        ({"extra": "@staticmethod\n    def why(nodes): ..."}, PluginHooksError, r"has a method Plugin\.why, which"),
        ({"init": "self.facts = lambda: 1"}, PluginHooksError, r"has a method Plugin\.facts, which"),
    ],
)
def test_every_failure_names_plugin_distribution_and_version(distribution, broken, error, problem):
    distribution(**broken)
    with pytest.raises(error, match=problem) as refused:
        _load("spot")
    (line,) = refused.value.messages
    assert line.startswith("plugin spot (acme-spot 1.2) ")
    assert "\n" not in line


def test_a_method_with_a_hooks_name_needs_the_mark(distribution):
    text = MODULE + "\nclass Overrides(Plugin):\n    def prefilter(self, group): ...\n\nPlugin = Overrides\n"
    distribution(text=text)
    with pytest.raises(PluginHooksError) as refused:
        _load("spot")
    assert str(refused.value) == (
        "plugin spot (acme-spot 1.2) has a method Overrides.prefilter, which the scheduler does not call, because it "
        "is not marked as a hook; put @hookimpl above it, or rename it"
    )
    assert _problem_of("spot") == str(refused.value)


def test_an_attribute_with_a_hooks_name_that_is_no_method_needs_no_mark(distribution):
    extra = "facts = {}\n    score = dict\n    @property\n    def why(self): raise AttributeError('not evaluated')"
    distribution(extra=extra, init="self.metrics = object()")
    assert _load("spot")


def test_an_input_error_of_a_constructor_keeps_its_message(distribution):
    distribution(init="from session_scheduler.errors import InputError; raise InputError('r.yaml: type: is missing')")
    with pytest.raises(PluginConstructionError) as refused:
        _load("spot")
    assert refused.value.messages == ("r.yaml: type: is missing [plugin spot (acme-spot 1.2)]",)


def test_options_set_arguments_only_where_the_plugin_is_switched_on():
    text = HEAD + "profiles: [{schedulerName: a}, {schedulerName: b, plugins: [{name: NodeName, enabled: false}]}]"
    config = Registry(BUILTIN).with_arguments(parse_config(text, "f"), "NodeName", {"x": 1})
    assert [profile.plugins[0].args if profile.plugins else None for profile in config.profiles] == [{"x": 1}, {}]
    with pytest.raises(InputError, match="argument x: no profile enables the plugin nowhere"):
        Registry(BUILTIN).with_arguments(SchedulerConfig(), "nowhere", {"x": 1})


def test_installed_plugins_are_listed_with_their_hooks_and_the_broken_ones_with_their_problem(distribution):
    distribution()
    distribution(name="acme-broken", plugin="broken", module="acme_broken", text="import nothing_of_that_name")
    listed = {plugin.name: plugin for plugin in Registry(BUILTIN).installed()}
    spot, broken, fit = listed["spot"], listed["broken"], listed["NodeResourcesFit"]
    assert (spot.distribution, spot.version, spot.origin) == ("acme-spot", "1.2", "entry point")
    assert (spot.hooks, spot.summary, spot.problem) == (("prefilter",), "Distinguishes spot nodes.", "")
    assert "cannot be imported" in broken.problem
    assert fit.origin == "built-in"
    assert set(fit.hooks) <= set(HOOKS)
    assert "filter" in fit.hooks


def _problem_of(name: str) -> str:
    return next(plugin.problem for plugin in Registry(BUILTIN).installed() if plugin.name == name)


def test_a_listed_plugin_says_that_a_hook_of_it_is_wrong_before_a_configuration_names_it(distribution):
    distribution(extra="@hookimpl\n    def filters(self, nodes): ...")
    assert (
        "plugin spot (acme-spot 1.2) has a hook that does not match its specification: unknown hook 'filters'"
        in _problem_of("spot")
    )
    distribution(name="acme-late", plugin="late", module="acme_late", extra="@hookimpl\n    def prebind(self): ...")
    assert "plugin late (acme-late 1.2) has a hook prebind that must be declared with `async def`" in _problem_of(
        "late"
    )


def test_a_name_that_is_offered_twice_is_listed_twice_with_both_distributions(distribution):
    distribution()
    distribution(name="acme-other", module="acme_other", version="3")
    listed = [plugin for plugin in Registry(BUILTIN).installed() if plugin.name == "spot"]
    assert [plugin.distribution for plugin in listed] == ["acme-other", "acme-spot"]
    assert {plugin.problem for plugin in listed} == {
        "plugin 'spot' is offered by acme-other 3 and acme-spot 1.2; uninstall one of them"
    }


def test_every_failure_is_an_input_error():
    assert issubclass(PluginLoadError, InputError)


def test_profiles_that_name_a_plugin_alike_share_it():
    text = HEAD + "profiles: [{schedulerName: a}, {schedulerName: b}]"
    loaded = Registry(BUILTIN).load_profiles(parse_config(text, "f.yaml"))
    assert all(a.instance is b.instance for a, b in zip(loaded["a"], loaded["b"], strict=True))


def test_a_plugin_that_keeps_the_clusters_state_cannot_be_there_twice():
    text = (
        HEAD
        + "profiles: [{schedulerName: a}, {schedulerName: b, plugins: [{name: fluence, args: {matchPolicy: low}}]}]"
    )
    with pytest.raises(
        PluginArgumentsError, match=r"profiles\[1\]\.plugins\[0\]\.args: another profile has different arguments"
    ):
        Registry(BUILTIN).load_profiles(parse_config(text, "f.yaml"))


class Timeless:
    name = "timeless"
    refused_actions: ClassVar = {"backfill": "backfill goes by time; remove it"}


def test_an_action_that_a_plugin_does_not_go_with_is_refused_where_it_is_listed() -> None:
    registry.register_plugin_builder("timeless", lambda _: Timeless())
    text = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
    text += "profiles: [{plugins: [{name: timeless}]}]\nactions: [allocate, preempt"
    assert any(
        plugin.name == "timeless"
        for plugin in Registry(BUILTIN).load_profiles(parse_config(f"{text}]", "f.yaml"))["fluence"]
    )
    with pytest.raises(PluginArgumentsError, match=r"^f\.yaml: actions\[2\]: backfill goes by time; remove it \["):
        Registry(BUILTIN).load_profiles(parse_config(f"{text}, backfill]", "f.yaml"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_profiles_with_and_without_reservation_pods_do_not_fit_together(order: tuple[int, int]) -> None:
    """Whichever comes first: one of them would not see the reservation pods of the other."""
    arguments: tuple[dict[str, object], ...] = ({}, {"wholeGpus": "reserved"})
    profiles = tuple(
        Profile(scheduler_name=f"s{number}", plugins=(PluginConfig(name="GpuSharing", args=arguments[which]),))
        for number, which in enumerate(order)
    )
    with pytest.raises(
        PluginArgumentsError, match=r"another profile has different arguments, and GpuSharing has a single"
    ):
        Registry(BUILTIN).load_calls(SchedulerConfig(profiles=profiles))
