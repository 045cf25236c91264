{{- define "leasehold.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "leasehold.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leasehold.labels" -}}
{{ include "leasehold.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "leasehold.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "leasehold.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "leasehold.secret" -}}
{{ .Values.access.existingSecret | default (include "leasehold.name" .) }}
{{- end }}

{{- /* Refuses values with which no server would run, or with which locks would not exclude each other. */ -}}
{{- define "leasehold.check" -}}
{{- $store := .Values.store -}}
{{- if not $store }}{{ fail "`store` is missing: the URL of the store, such as --set store=s3://bucket/locks" }}{{ end -}}
{{- if not .Values.image.repository }}{{ fail "`image.repository` is missing: build the image with deploy/docker/Dockerfile" }}{{ end -}}
{{- if hasPrefix "mem:" $store }}{{ fail "`store`: mem: loses all locks when the pod ends; choose a store that lasts" }}{{ end -}}
{{- if hasPrefix "sqlite:" $store -}}
{{- if gt (int .Values.replicaCount) 1 }}{{ fail "`store`: a SQLite file is for the processes of one machine; set replicaCount=1 or choose another store" }}{{ end -}}
{{- if not .Values.persistence.existingClaim }}{{ fail "`persistence.existingClaim` is missing: without it the SQLite file, and all locks, are lost with the pod" }}{{ end -}}
{{- if not (hasPrefix "sqlite:/var/lib/leasehold/" $store) }}{{ fail "`store`: the claim is mounted at /var/lib/leasehold, so the file must be there: sqlite:/var/lib/leasehold/locks.db" }}{{ end -}}
{{- end -}}
{{- if not .Values.access.existingSecret -}}
{{- if not .Values.access.accessToml }}{{ fail "`access.existingSecret` is missing, or `access.accessToml`: without tokens, anyone in the cluster could use all locks" }}{{ end -}}
{{- if lt (len (trim .Values.access.secret)) 32 }}{{ fail "`access.secret` has fewer than 32 bytes: make one with openssl rand -hex 32" }}{{ end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}{{ fail "`ingress.host` is missing" }}{{ end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.tlsSecretName) }}{{ fail "`ingress.tlsSecretName` is missing: tokens would be sent without TLS" }}{{ end -}}
{{- end }}
