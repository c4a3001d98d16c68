{{/* The name of all objects: the release's, with the chart's unless it is part of it. */}}
{{- define "djl-serving.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* What selects the pods. It may never change: a Deployment's selector can't. */}}
{{- define "djl-serving.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "djl-serving.labels" -}}
{{ include "djl-serving.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The seconds that a pod waits before SIGTERM, while Services stop sending requests there. */}}
{{- define "djl-serving.sleep" -}}5{{- end }}

{{/* A value as a variable of the environment has it. YAML's whole numbers are floats here, and large ones 1e+06. */}}
{{- define "djl-serving.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end }}
