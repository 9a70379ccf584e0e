{{/* Labels of an object: (dict "root" $ "name" "fluence-webhook") */}}
{{- define "fluence.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: fluence
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* name, namespace and labels of an object: (dict "root" $ "name" "fluence-webhook") */}}
{{- define "fluence.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "fluence.labels" . | nindent 2 }}
{{- end }}

{{/* The same for a cluster-scoped object. */}}
{{- define "fluence.clusterMetadata" -}}
name: {{ .name }}
labels:
  {{- include "fluence.labels" . | nindent 2 }}
{{- end }}

{{- define "fluence.image" -}}
{{- with .Values.image -}}
image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .pullPolicy }}
{{- end -}}
{{- end }}

{{/* metadata of a pod: (dict "name" … "annotations" …) */}}
{{- define "fluence.podMetadata" -}}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  app: {{ .name }}
  app.kubernetes.io/name: {{ .name }}
  app.kubernetes.io/part-of: fluence
{{- end }}

{{/* Node selector, tolerations and priority class of a pod: (dict "root" $ "part" .Values.webhook) */}}
{{- define "fluence.placement" -}}
{{- with .part.priorityClassName -}}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Prefers different nodes and zones for replicas: (dict "name" …) */}}
{{- define "fluence.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {app.kubernetes.io/name: {{ .name }}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/name: {{ .name }}}
    matchLabelKeys: [pod-template-hash]
{{- end }}

{{- define "fluence.unprivilegedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fluence.unprivilegedContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "fluence.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
{{- end }}

{{- define "fluence.resourcesEnv" -}}
- name: FLUENCE_RESOURCES
  value: /etc/fluence/resources/resources.yaml
{{- end }}

{{- define "fluence.resourcesMount" -}}
- name: resources
  mountPath: /etc/fluence/resources
  readOnly: true
{{- end }}

{{- define "fluence.resourcesVolume" -}}
- name: resources
  configMap: {name: fluence-resources, optional: true}
{{- end }}

{{/* The option --host, if the address is not the command's default. */}}
{{- define "fluence.hostOption" -}}
{{- if ne .Values.host "0.0.0.0" }}
- --host
- {{ .Values.host | quote }}
{{- end }}
{{- end }}

{{/* Rejects fields of `config` on which other objects of the chart depend. */}}
{{- define "fluence.checkConfig" -}}
{{- if (.Values.goCompatible).enabled -}}
{{- $missing := list -}}
{{- if not .Values.webhook.enabled }}{{ $missing = append $missing "webhook.enabled: true" }}{{ end -}}
{{- if not (has "quantum" .Values.webhook.handlers) }}{{ $missing = append $missing "webhook.handlers with quantum" }}{{ end -}}
{{- if not .Values.webhook.sidecarImage }}{{ $missing = append $missing "webhook.sidecarImage" }}{{ end -}}
{{- if not .Values.coordination.enabled }}{{ $missing = append $missing "coordination.enabled: true" }}{{ end -}}
{{- if $missing }}{{ fail (printf "goCompatible.enabled also needs %s; add this to the values" (join ", " $missing)) }}{{ end -}}
{{- end -}}
{{- if and (.Values.reservedGpus).enabled (not (and .Values.devicePlugin.enabled .Values.policies.enabled)) -}}
{{ fail "reservedGpus.enabled needs devicePlugin.enabled and policies.enabled; set both to true" }}
{{- end -}}
{{- range $field, $remedy := dict
      "profiles" "use schedulerNames, requireInjectedEnv, pluginArguments and slurmBridge" -}}
{{- if hasKey $.Values.config $field }}{{ fail (printf "config.%s is not allowed; %s" $field $remedy) }}{{ end -}}
{{- end -}}
{{- range $field := list "enabled" "host" "port" -}}
{{- if hasKey (default dict $.Values.config.serving) $field -}}
{{ fail (printf "config.serving.%s is not allowed, because probes, Services and NetworkPolicies depend on the chart's value; remove it, and set host to change the address" $field) }}
{{- end -}}
{{- end -}}
{{- range $field := list "enabled" "name" "namespace" -}}
{{- if hasKey (default dict $.Values.config.leaderElection) $field -}}
{{ fail (printf "config.leaderElection.%s is not allowed, because roles, replicas and policies depend on the chart's value; remove it" $field) }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The scheduler's configuration with the overrides from the values. */}}
{{- define "fluence.config" -}}
{{- include "fluence.checkConfig" . -}}
{{- $args := mergeOverwrite (dict "requireInjectedEnv" (and .Values.webhook.enabled .Values.requireInjectedEnv)) (ternary (dict "goCompatible" true) dict (default false (.Values.goCompatible).enabled)) (deepCopy .Values.pluginArguments) -}}
{{- $gpus := ternary (list (dict "name" "GpuSharing" "args" (dict "wholeGpus" "reserved" "reservations" (dict "namespace" .Release.Namespace)))) list (default false (.Values.reservedGpus).enabled) -}}
{{- $numa := ternary (list (dict "name" "NodeResourceTopologyMatch" "args" (default dict (.Values.numa).arguments))) list (default false (.Values.numa).enabled) -}}
{{- $profiles := list -}}
{{- range .Values.schedulerNames -}}
{{- $profiles = append $profiles (dict "schedulerName" . "plugins" (concat (list (dict "name" "fluence" "args" $args)) $gpus $numa)) -}}
{{- end -}}
{{- with .Values.slurmBridge -}}
{{- if .enabled -}}
{{- if has .schedulerName $.Values.schedulerNames }}{{ fail (printf "slurmBridge.schedulerName is also one of schedulerNames: %s; choose another" .schedulerName) }}{{ end -}}
{{- $args := mergeOverwrite (dict "url" .url "tokenFile" "/etc/fluence/slurm/auth-token") (deepCopy .arguments) -}}
{{- if ne .schedulerName "slurm-bridge-scheduler" }}{{ $args = set $args "schedulerName" .schedulerName }}{{ end -}}
{{- $profiles = append $profiles (dict "schedulerName" .schedulerName "plugins" (concat (list (dict "name" "fluence" "enabled" false) (dict "name" "DynamicResources" "enabled" false) (dict "name" "slurm-bridge" "args" $args)) $gpus)) -}}
{{- end -}}
{{- end -}}
{{- $election := dict "enabled" true "namespace" .Release.Namespace "name" "fluence" "leaseSeconds" 15 "renewSeconds" 10 "retrySeconds" 2 -}}
{{- $config := dict "apiVersion" "fluence.flux-framework.org/v1alpha1" "kind" "SchedulerConfiguration" "profiles" $profiles "leaderElection" $election "serving" (dict "host" .Values.host "port" 8080) -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end }}

{{/* A RoleBinding or ClusterRoleBinding of a service account: (dict "root" $ "name" … "kind" "ClusterRole") */}}
{{- define "fluence.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include (eq .kind "Role" | ternary "fluence.metadata" "fluence.clusterMetadata") . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* A PodDisruptionBudget, so that a drain evicts one replica at a time: (dict "root" $ "name" …) */}}
{{- define "fluence.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "fluence.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}

{{/* The port of slurmrestd. */}}
{{- define "fluence.slurmPort" -}}
{{- with urlParse .Values.slurmBridge.url -}}
{{- regexFind ":[0-9]+$" .host | trimPrefix ":" | default (eq .scheme "https" | ternary "443" "80") -}}
{{- end -}}
{{- end }}

{{/* A NetworkPolicy: (dict "root" $ "name" … "ingress" (list 8080) "api" true), optionally with "more" egress ports and "from" peers */}}
{{- define "fluence.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "fluence.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
  policyTypes: [Ingress, Egress]
  ingress:
    - ports:
        {{- range .ingress }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
      {{- with .from }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- if .api }}
  egress:
    - ports:
        {{- range .root.Values.networkPolicy.apiServerPorts }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
        {{- range .more }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
  {{- end }}
{{- end }}
