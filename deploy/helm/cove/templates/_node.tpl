{{- /*
The template of Pods in which sandboxes run. It takes a list: the root context, the component,
the values of this kind of Pod, and further arguments of "cove node run".
*/}}
{{- define "cove.nodePod" -}}
{{- $ := index . 0 }}{{ $component := index . 1 }}{{ $pod := index . 2 }}{{ $more := index . 3 -}}
metadata:
  labels: {{- include "cove.selector" $component | nindent 4 }}
spec:
  {{- include "cove.pullSecrets" $ | nindent 2 }}
  serviceAccountName: cove-node
  automountServiceAccountToken: false
  enableServiceLinks: false
  # With an object store, longer than the moving may take.
  terminationGracePeriodSeconds: {{ if $.Values.objects.secret }}{{ add (mul $.Values.objects.drainMinutes 60) 30 }}{{ else }}30{{ end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "cove.selector" $component | nindent 10 }}
  {{- with $pod.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "cove.podSecurity" $ | nindent 4 }}
    seccompProfile: {type: Localhost, localhostProfile: {{ $.Values.nodes.seccompProfile }}}
  containers:
    - name: cove
      {{- include "cove.container" $ | nindent 6 }}
      args: {{ concat (list "node" "run") $more | toJson }}
      env:
        {{- if $.Values.objects.secret }}
        - {name: COVE_NODE_DRAIN_ON_EXIT, value: {{ $.Values.objects.drainMinutes }}m}
        {{- end }}
        - {name: COVE_STATE_DIR, value: /var/lib/cove/state}
        - {name: COVE_NODE_SERVER, value: "cove-nodes.{{ $.Values.namespaces.server }}.svc:7780"}
        - {name: COVE_NODE_POD_TOKEN, value: /var/run/secrets/cove/token}
        - {name: COVE_NODE_AUTHORITY, value: /etc/cove/authority.pem}
        - {name: COVE_NODE_HEALTH_LISTEN, value: ":7781"}
        {{- with $.Values.nodes.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: health, containerPort: 7781}
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 2
      resources: {{- toYaml $pod.resources | nindent 8 }}
      securityContext:
        {{- include "cove.containerSecurity" $ | nindent 8 }}
      volumeMounts:
        - {name: state, mountPath: /var/lib/cove}
        - {name: tmp, mountPath: /tmp}
        - {name: token, mountPath: /var/run/secrets/cove, readOnly: true}
        - {name: authority, mountPath: /etc/cove, readOnly: true}
  volumes:
    {{- with $pod.disk }}
    - name: state
      emptyDir: {sizeLimit: {{ . }}}
    {{- end }}
    - name: tmp
      emptyDir: {}
    - name: token
      projected:
        sources:
          - serviceAccountToken: {audience: cove-nodes, path: token, expirationSeconds: 3600}
    - name: authority
      configMap:
        name: cove-nodes
        items: [{key: authority.pem, path: authority.pem}]
{{- end }}
