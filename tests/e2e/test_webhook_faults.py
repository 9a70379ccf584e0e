"""The webhook without its keys, with keys that ended, started twice at once, and not there at all."""

from __future__ import annotations

import datetime

from cryptography import x509

from .deployed import SYSTEM, TLS, WEBHOOK, Deployed, backend_of


def injected(deployed: Deployed, name: str) -> bool:
    """Whether a pod that is created now gets the variables."""
    deployed.create_pods(name, devices=0)
    found = deployed.pod(name)["spec"]["containers"][0].get("env", [])
    deployed.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    return any(each["name"] == "FLUXION_BACKEND" for each in found)


def wait_injected(deployed: Deployed, prefix: str) -> None:
    """Return once pods get the variables."""
    names = iter(range(1000))
    deployed.cluster.until(lambda: injected(deployed, f"{prefix}-{next(names)}"), bool)


def test_a_deleted_secret_is_made_again_and_no_pod_goes_without(deployed: Deployed) -> None:
    deployed.cluster.kubectl("delete", "secret", TLS, "-n", SYSTEM)
    assert injected(deployed, "meanwhile")
    deployed.cluster.until(
        lambda: deployed.cluster.get("secrets", "-n", SYSTEM)["items"],
        lambda found: any(each["metadata"]["name"] == TLS for each in found), 150,
    )  # fmt: skip
    wait_injected(deployed, "after")
    assert deployed.secret()["ca.crt"].strip() in deployed.ca_bundle()
    deployed.wait_ready(WEBHOOK)


def test_replicas_that_start_at_once_without_keys_agree_on_one_authority(deployed: Deployed) -> None:
    deployed.scale(WEBHOOK, 0)
    deployed.cluster.kubectl("delete", "secret", TLS, "-n", SYSTEM)
    deployed.scale(WEBHOOK, 2)
    for number in range(10):  # both answer
        assert injected(deployed, f"at-once-{number}")
    assert deployed.secret()["ca.crt"].strip() in deployed.ca_bundle()


def test_a_certificate_that_ended_is_replaced_before_anything_is_served(deployed: Deployed) -> None:
    deployed.scale(WEBHOOK, 0)
    secret = deployed.secret()
    ended = expired(secret["tls.crt"], secret["ca.crt"], secret["ca.key"])
    deployed.cluster.kubectl("patch", "secret", TLS, "-n", SYSTEM, "--type=merge", "-p",
                             f'{{"stringData":{{"tls.crt":{ended!r}}}}}'.replace("'", '"'))  # fmt: skip
    deployed.scale(WEBHOOK, 2)
    assert injected(deployed, "renewed")
    served = x509.load_pem_x509_certificate(deployed.secret()["tls.crt"].encode())
    assert served.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)


def test_without_a_webhook_device_pods_wait_with_a_reason_and_others_run(deployed: Deployed) -> None:
    deployed.scale(WEBHOOK, 0)
    try:
        deployed.create_pods("plain", devices=0)
        deployed.create_pods("bare")
        deployed.wait_phase("Running", "plain")
        assert "FLUXION_BACKEND" in deployed.wait_refused("bare", "FLUXION_BACKEND")
        assert backend_of(deployed.pod("bare")) == ""
    finally:
        deployed.scale(WEBHOOK, 2)
    wait_injected(deployed, "back")
    deployed.create_pods("injected")
    deployed.wait_phase("Running", "injected")
    assert deployed.env("injected")["FLUXION_BACKEND"]


def expired(certificate: str, authority: str, key: str) -> str:
    """The same certificate by the same authority, but of last year."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    served = x509.load_pem_x509_certificate(certificate.encode())
    issuer = x509.load_pem_x509_certificate(authority.encode())
    signer = serialization.load_pem_private_key(key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer.subject, subject_name=served.subject, public_key=served.public_key(),
        serial_number=x509.random_serial_number(), not_valid_before=now - datetime.timedelta(days=365),
        not_valid_after=now - datetime.timedelta(days=1), extensions=list(served.extensions),
    )  # fmt: skip
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
