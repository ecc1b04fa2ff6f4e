{{- define "cove.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "cove.chartLabels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The labels by which Pods are selected of a component. */}}
{{- define "cove.selector" -}}
app.kubernetes.io/name: cove
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- /* Selects the Pods in which sandboxes run. */}}
{{- define "cove.nodeSelector" -}}
matchLabels: {app.kubernetes.io/name: cove}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [node, dedicated-node]}
{{- end }}

{{- /* What containers of all Pods have in common. */}}
{{- define "cove.container" -}}
image: {{ include "cove.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "cove.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "cove.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "cove.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The claim of the volume of a Pod's state. */}}
{{- define "cove.claim" -}}
- metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ .size }}}
{{- end }}

{{- /* Where records are, for the server and for what makes its first key. */}}
{{- define "cove.store" -}}
{{- with .Values.postgres.secret }}
- name: COVE_STORE
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.postgres.key }}}}
{{- end }}
{{- end }}
