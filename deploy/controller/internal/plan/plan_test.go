package plan_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

var object = plan.Object{Namespace: "team", Name: "box", ID: "0b8b0b8e-5f0c-4c8a-9d3c-1f2e3d4c5b6a"}

func of(t *testing.T, text string) (*plan.Plan, error) {
	t.Helper()
	var b agents.SandboxBlueprint
	if err := yaml.UnmarshalStrict([]byte(text), &b); err != nil {
		t.Fatal(err)
	}
	return plan.Of(&b, object, map[string]string{"known:1": "python"})
}

// pod is a Pod template with one container that has more fields, and more fields itself.
func pod(container, more string) string {
	return "podTemplate:\n  spec:\n    containers:\n    - {name: app, image: app:1" + container + "}\n" + more
}

func TestOf(t *testing.T) {
	zero := new(int64)
	volume := "k8s-" + object.ID + "-data"
	for name, c := range map[string]struct {
		text string
		want plan.Plan
	}{
		"image": {pod("", ""), plan.Plan{Image: "app:1"}},
		"command": {pod(`, command: [sh, -c], args: ["echo $(A) $$(A) $(B)"], env: [{name: A, value: a}], workingDir: /srv`, ""), plan.Plan{
			Image: "app:1", Command: []string{"sh", "-c"}, Args: []string{"echo a $(A) $(B)"}, Request: sandbox.CreateRequest{Env: map[string]string{"A": "a"}, WorkDir: "/srv"},
		}},
		"template for an image": {strings.Replace(pod("", ""), "app:1", "known:1", 1), plan.Plan{Image: "known:1", Template: "python"}},
		"annotations": {
			"podTemplate:\n  metadata: {annotations: {cove.sh/template: node, cove.sh/network: packages, cove.sh/secrets: 'TOKEN=github, KEY=api'}}\n" +
				"  spec: {containers: [{name: app, image: app:1, env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}",
			plan.Plan{Image: "app:1", Template: "node", Request: sandbox.CreateRequest{Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages}, Secrets: map[string]string{"TOKEN": "github", "KEY": "api"}}},
		},
		"fields of the object": {
			pod(", env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]", ""),
			plan.Plan{Image: "app:1", Request: sandbox.CreateRequest{Env: map[string]string{"A": "box", "B": "team"}}},
		},
		"resources": {
			pod(", resources: {requests: {cpu: 250m, memory: 512Mi, ephemeral-storage: 1Gi}, limits: {memory: 1500M}}", ""),
			plan.Plan{Image: "app:1", Request: sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 1431, DiskMiB: 1024}}},
		},
		"user": {
			pod(", securityContext: {runAsUser: 1000}", "    securityContext: {runAsUser: 1, runAsGroup: 2, runAsNonRoot: true}\n"),
			plan.Plan{Image: "app:1", NonRoot: true, Request: sandbox.CreateRequest{User: "1000:2"}},
		},
		"ports": {pod(", ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]", ""), plan.Plan{
			Image: "app:1", Ports: []int{80}, Ignored: []string{"containers[0].ports[1]: only TCP ports get a preview"},
		}},
		"volumes": {
			pod(", volumeMounts: [{name: data, mountPath: /data}, {name: tmp, mountPath: /tmp}, {name: mem, mountPath: /mem}]",
				"    volumes: [{name: tmp, emptyDir: {}}, {name: mem, emptyDir: {medium: Memory, sizeLimit: 10Mi}}]\n"+
					"volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]\n"),
			plan.Plan{
				Image: "app:1", Dirs: []string{"/tmp"}, Volumes: []sandbox.CreateVolumeRequest{{Name: volume, SizeMiB: 1024}},
				Request: sandbox.CreateRequest{Mounts: []sandbox.Mount{{Target: "/data", Volume: volume}, {Target: "/mem", Tmpfs: true, SizeMiB: 10}}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := of(t, c.text)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Restart, c.want.Request.LifetimeSeconds, c.want.Request.IdleTimeoutSeconds = "Always", zero, zero
			if diff := cmp.Diff(c.want, *got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNothingIsPassedOver has fields that have no effect, and fields that are refused.
func TestNothingIsPassedOver(t *testing.T) {
	for text, want := range map[string]string{
		pod(", readinessProbe: {tcpSocket: {port: 80}}", ""):                "containers[0].readinessProbe: ",
		pod(", securityContext: {readOnlyRootFilesystem: true}", ""):        "containers[0].securityContext.readOnlyRootFilesystem: ",
		pod("", "    runtimeClassName: gvisor\n"):                           "runtimeClassName: ",
		pod("", "    nodeSelector: {a: b}\n"):                               "nodeSelector: ",
		pod("", "service: true\n"):                                          "spec.service: ",
		pod(", securityContext: {capabilities: {drop: [ALL]}}", ""):         "containers[0].securityContext.capabilities: ",
		pod("", "    tolerations: [{operator: Exists}]\n"):                  "tolerations: ",
		pod("", "    serviceAccountName: robot\n"):                          "serviceAccountName: ",
		pod("", "    terminationGracePeriodSeconds: 0\n"):                   "terminationGracePeriodSeconds: ",
		pod("", "    securityContext: {seccompProfile: {type: Localhost}}"): "securityContext.seccompProfile: ",
	} {
		p, err := of(t, text)
		if err != nil || !strings.Contains(strings.Join(p.Ignored, "\n"), want) {
			t.Errorf("%s\ngot %+v, %v, want %s", text, p, err, want)
		}
	}
	for text, want := range map[string]string{
		"podTemplate: {spec: {containers: []}}":                                                                               "containers: there are 0",
		pod("", "    - {name: second, image: b}\n"):                                                                           "containers: there are 2",
		pod("", "    initContainers: [{name: i, image: b}]\n"):                                                                "initContainers: ",
		pod("", "    hostNetwork: true\n"):                                                                                    "hostNetwork: ",
		pod("", "    automountServiceAccountToken: true\n"):                                                                   "automountServiceAccountToken: ",
		pod("", "    activeDeadlineSeconds: 3\n"):                                                                             "activeDeadlineSeconds: use spec.shutdownTime",
		pod("", "    os: {name: windows}\n"):                                                                                  "os: sandboxes run Linux",
		pod("", "    schedulingGates: [{name: a}]\n"):                                                                         "schedulingGates: Cove does not know it",
		pod("", "    securityContext: {runAsGroup: 1}\n"):                                                                     "securityContext.runAsGroup: ",
		pod("", "    securityContext: {runAsUser: 0, runAsNonRoot: true}\n"):                                                  "securityContext.runAsUser: ",
		pod(", securityContext: {privileged: true}", ""):                                                                      "containers[0].securityContext.privileged: ",
		pod(", securityContext: {capabilities: {add: [NET_ADMIN]}}", ""):                                                      "capabilities.add: ",
		pod(", lifecycle: {preStop: {exec: {command: [a]}}}", ""):                                                             "containers[0].lifecycle: ",
		pod(", envFrom: [{configMapRef: {name: c}}]", ""):                                                                     "containers[0].envFrom: ",
		pod(", env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", ""):                                           "annotation cove.sh/secrets",
		pod(", env: [{name: A, valueFrom: {configMapKeyRef: {name: s, key: k}}}]", ""):                                        "containers[0].env[0] (A): ",
		pod(", env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]", ""):                                       "status.podIP",
		pod(", resources: {limits: {nvidia.com/gpu: 1}}", ""):                                                                 "nvidia.com/gpu",
		pod(", ports: [{containerPort: 80, hostPort: 80}]", ""):                                                               "hostPort",
		pod(", imagePullPolicy: Never", ""):                                                                                   "imagePullPolicy: ",
		pod(", volumeMounts: [{name: a, mountPath: /a}]", ""):                                                                 `there is no volume "a"`,
		pod(", volumeMounts: [{name: a, mountPath: /a}]", "    volumes: [{name: a, hostPath: {path: /}}]\n"):                  `volume "a": `,
		pod(", volumeMounts: [{name: a, mountPath: /a, subPath: b}]", "    volumes: [{name: a, emptyDir: {}}]\n"):             "subPath",
		"podTemplate: {metadata: {annotations: {cove.sh/template: a}}, spec: {containers: [{name: a, image: b, args: [c]}]}}": "containers[0].args: ",
		"podTemplate: {metadata: {annotations: {cove.sh/network: '{'}}, spec: {containers: [{name: a, image: b}]}}":           "cove.sh/network: ",
		"podTemplate: {metadata: {annotations: {cove.sh/secrets: A}}, spec: {containers: [{name: a, image: b}]}}":             "cove.sh/secrets: ",
	} {
		p, err := of(t, text)
		var refused *plan.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %+v, %v, want %s", text, p, err, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	for text, want := range map[string]string{
		"egress: []":   `{"preset":"none"}`,
		"egress: [{}]": `{"preset":"none","rules":[{"action":"allow","to":"*"}]}`,
		"egress: [{to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.9/32]}}], ports: [{port: 443}, {protocol: UDP, port: 8000, endPort: 8999}]}]": `{"preset":"none","rules":[` +
			`{"action":"deny","to":"203.0.113.9/32"},{"action":"allow","to":"203.0.113.0/24","protocol":"tcp","ports":["443"]},{"action":"allow","to":"203.0.113.0/24","protocol":"udp","ports":["8000-8999"]}]}`,
		"egress: [{to: [{podSelector: {}}]}]":   "sandboxes and what they reach are no Pods",
		"egress: [{ports: [{port: http}]}]":     "use numbers of ports",
		"egress: [{ports: [{protocol: SCTP}]}]": "sandboxes have no SCTP",
		"egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: 10.1.2.0/24}}]}]": "write ranges that do not overlap",
		"egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}, {ipBlock: {cidr: '::/0', except: [fc00::/7]}}]}]": `{"preset":"none","rules":[` +
			`{"action":"deny","to":"10.0.0.0/8"},{"action":"allow","to":"0.0.0.0/0"},{"action":"deny","to":"fc00::/7"},{"action":"allow","to":"::/0"}]}`,
	} {
		var n extensions.NetworkPolicySpec
		if err := yaml.UnmarshalStrict([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		got, err := plan.Network(&n)
		if err != nil {
			got = err.Error()
		} else if !json.Valid([]byte(got)) {
			t.Errorf("%s is not JSON", got)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s\ngot %s\nwant %s", text, got, want)
		}
	}
}

// TestVolumeName has names that differ only where they are cut off.
func TestVolumeName(t *testing.T) {
	a, b := plan.VolumeName(object.ID, strings.Repeat("a", 60)+"1"), plan.VolumeName(object.ID, strings.Repeat("a", 60)+"2")
	if a == b || len(a) > sandbox.MaxNameLength {
		t.Errorf("the names are %s and %s", a, b)
	}
}
