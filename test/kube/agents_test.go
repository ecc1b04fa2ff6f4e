//go:build kube

package kube

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// runtimeImage stands for the template host in these tests.
const runtimeImage = "us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/python-runtime-sandbox:latest-main"

// TestAgents uses objects of agents.x-k8s.io, in the form of agent-sandbox's examples, with
// a real Kubernetes and real sandboxes.
func TestAgents(t *testing.T) {
	r := startAgents(t, "--template", runtimeImage+"=host")
	r.start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *agentRig)
	}{
		{"life", agentLife}, {"image", agentImage}, {"unsupported", agentUnsupported}, {"end", agentEnd}, {"expiry", agentExpiry},
		{"claim", agentClaim}, {"cove is away", agentCoveAway}, {"killed", agentKilled},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, r) }) {
			return
		}
	}
}

// counter is a Sandbox with the fields of agent-sandbox's examples, that counts in memory.
func counter(name, more string) string {
	return `apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: ` + name + `
spec:
` + more + `  podTemplate:
    metadata:
      labels:
        sandbox: my-python-sandbox
      annotations:
        test: "yes"
    spec:
      securityContext:
        runAsUser: 1000
        runAsGroup: 3000
        fsGroup: 2000
      containers:
      - name: python-sandbox
        image: ` + runtimeImage + `
        imagePullPolicy: IfNotPresent
        command: ["/bin/sh", "-c", "echo $STEP > /tmp/step; i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done"]
        ports:
        - containerPort: 8888
        env:
        - name: WORD
          value: one
        - name: STEP
          value: $(WORD)-$$-$(OTHER)
        resources:
          requests:
            cpu: "250m"
            memory: "256Mi"
            ephemeral-storage: "512Mi"
        readinessProbe:
          httpGet:
            path: "/"
            port: 8888
`
}

// count reads how far a counter has come.
func (r *agentRig) count(t *testing.T, id string) int {
	t.Helper()
	words := strings.Fields(r.cove.Sh(t, id, "cat /tmp/count"))
	if len(words) == 0 {
		return 0 // it is being written
	}
	n, err := strconv.Atoi(words[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func agentLife(t *testing.T, r *agentRig) {
	r.apply(t, counter("life", ""))
	sb := r.await(t, "sandbox", "life", "Ready", "True", "DependenciesReady")
	id := sb.Metadata.Annotations["cove.sh/sandbox"]
	got, err := r.cove.Client.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if got.Namespace != "default" || got.Resources.VCPUs != 1 || got.Resources.MemoryMiB != 256 || got.Resources.DiskMiB != 512 || got.User != "1000:3000" || got.LifetimeSeconds != 0 || got.IdleTimeoutSeconds != 0 {
		t.Errorf("the sandbox is %+v", got)
	}
	if url := sb.Metadata.Annotations["cove.sh/previews"]; !strings.Contains(url, `{"8888":"http://8888-`+id) {
		t.Errorf("the previews are %s", url)
	}
	if c := sb.condition("cove.sh/Ignored"); !strings.Contains(c.Message, "readinessProbe: ") || !strings.Contains(c.Message, "fsGroup: ") {
		t.Errorf("it does not say what has no effect: %+v", c)
	}
	var before int
	if !covetest.Eventually(time.Minute, func() bool { before = r.count(t, id); return before > 20 }) {
		t.Fatal("the counter does not count")
	}
	r.cove.Shows(t, id, "id -u; id -g; cat /tmp/step", "1000\n3000\none-$-$(OTHER)")

	r.kubectl(t, "patch", "sandbox", "life", "--type=merge", "-p", `{"spec":{"operatingMode":"Suspended"}}`)
	sb = r.await(t, "sandbox", "life", "Suspended", "True", "MemoryKept")
	if c := sb.condition("Ready"); c.Status != "False" || c.Reason != "SandboxSuspended" {
		t.Errorf("Ready is %+v", c)
	}
	if got, err = r.cove.Client.Get(t.Context(), id); err != nil || got.State != sandbox.StatePaused {
		t.Fatalf("the sandbox is %+v, %v", got, err)
	}
	r.kubectl(t, "patch", "sandbox", "life", "--type=merge", "-p", `{"spec":{"operatingMode":"Running"}}`)
	r.await(t, "sandbox", "life", "Ready", "True", "")
	if !covetest.Eventually(time.Minute, func() bool { return r.count(t, id) > before+2 }) {
		t.Errorf("the counter is at %d, and was at %d: it has not continued", r.count(t, id), before)
	}
	if jobs, err := r.cove.Client.ListJobs(t.Context(), id, sandbox.Page{}); err != nil || commands(jobs.Items) != 1 {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}

	r.kubectl(t, "delete", "sandbox", "life", "--timeout=3m")
	if got, err = r.cove.Client.Get(t.Context(), id); err != nil || got.State != sandbox.StateKilled {
		t.Errorf("after its object, the sandbox is %+v, %v", got, err)
	}
}

// commands counts the jobs that run the command of a container.
func commands(jobs []sandbox.Job) (n int) {
	for _, j := range jobs {
		if j.Tag == "kubernetes-command" {
			n++
		}
	}
	return n
}

// agentImage makes a sandbox of an image, whose entry point runs.
func agentImage(t *testing.T, r *agentRig) {
	manifest := strings.Replace(counter("image", ""), runtimeImage, r.image, 1)
	lines := slices.DeleteFunc(strings.SplitAfter(manifest, "\n"), func(line string) bool { return strings.Contains(line, "command: ") })
	r.apply(t, strings.Join(lines, ""))
	id := r.await(t, "sandbox", "image", "Ready", "True", "").Metadata.Annotations["cove.sh/sandbox"]
	jobs, err := r.cove.Client.ListJobs(t.Context(), id, sandbox.Page{})
	if err != nil || len(jobs.Items) != 1 || jobs.Items[0].State != sandbox.JobRunning || strings.Join(jobs.Items[0].Command, " ") != "/pause" {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
	r.kubectl(t, "delete", "sandbox", "image", "--timeout=3m")
}

func agentUnsupported(t *testing.T, r *agentRig) {
	r.apply(t, `apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: unsupported
spec:
  podTemplate:
    spec:
      initContainers: [{name: init, image: x}]
      containers:
      - name: app
        image: `+runtimeImage+`
        securityContext: {privileged: true}
        env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        volumeMounts: [{name: host, mountPath: /host}]
      volumes: [{name: host, hostPath: {path: /}}]
`)
	sb := r.await(t, "sandbox", "unsupported", "Ready", "False", "Unsupported")
	message := sb.condition("Ready").Message
	for _, want := range []string{"initContainers: ", "privileged: ", "env[0] (TOKEN): ", `volume "host": `} {
		if !strings.Contains(message, want) {
			t.Errorf("%q does not say %q", message, want)
		}
	}
	if all := r.made(t, sb.Metadata.UID); len(all) != 0 {
		t.Errorf("it has sandboxes: %+v", all)
	}
	err := r.Kubectl(t.Context(), strings.NewReader(counter("mode", "  operatingMode: Sleeping\n")), io.Discard, "apply", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "operatingMode") {
		t.Errorf("an operatingMode that does not exist: %v", err)
	}
	r.kubectl(t, "delete", "sandbox", "unsupported", "--timeout=3m")
}

// agentEnd has commands that end, and a sandbox that somebody else ends.
func agentEnd(t *testing.T, r *agentRig) {
	for name, line := range map[string]string{"succeeds": "exit 0", "fails": "exit 7"} {
		manifest := strings.Replace(counter(name, ""), "    spec:\n      securityContext:", "    spec:\n      restartPolicy: Never\n      securityContext:", 1)
		r.apply(t, strings.Replace(manifest, "i=0; while", line+"; while", 1))
	}
	r.await(t, "sandbox", "succeeds", "Finished", "True", "PodSucceeded")
	sb := r.await(t, "sandbox", "fails", "Finished", "True", "PodFailed")
	if c := sb.condition("Ready"); c.Status != "False" || !strings.Contains(c.Message, "exit code 7") {
		t.Errorf("Ready is %+v", c)
	}
	r.apply(t, counter("killed", ""))
	sb = r.await(t, "sandbox", "killed", "Ready", "True", "")
	if _, err := r.cove.Client.Kill(t.Context(), sb.Metadata.Annotations["cove.sh/sandbox"]); err != nil {
		t.Fatal(err)
	}
	sb = r.await(t, "sandbox", "killed", "Finished", "True", "PodFailed")
	if all := r.made(t, sb.Metadata.UID); len(all) != 1 {
		t.Errorf("the sandboxes are %+v", all)
	}
	r.kubectl(t, "delete", "sandbox", "succeeds", "fails", "killed", "--timeout=3m")
}

func agentExpiry(t *testing.T, r *agentRig) {
	past := "  shutdownTime: " + time.Now().Add(-time.Minute).UTC().Format(time.RFC3339) + "\n"
	r.apply(t, counter("retained", ""))
	uid := r.await(t, "sandbox", "retained", "Ready", "True", "").Metadata.UID
	r.apply(t, counter("retained", past))
	r.apply(t, counter("deleted", past+"  shutdownPolicy: Delete\n"))
	r.await(t, "sandbox", "retained", "Ready", "False", "SandboxExpired")
	if all := r.made(t, uid); len(all) != 1 || all[0].State != sandbox.StateKilled {
		t.Errorf("the sandboxes are %+v", all)
	}
	r.kubectl(t, "wait", "--for=delete", "sandbox/deleted", "--timeout=3m")
	r.kubectl(t, "delete", "sandbox", "retained", "--timeout=3m")
}

const pool = `apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata:
  name: python
spec:
  envVarsInjectionPolicy: Allowed
  networkPolicy:
    egress: []
  podTemplate:
    spec:
      automountServiceAccountToken: false
      containers:
      - name: python-runtime
        image: ` + runtimeImage + `
        ports:
        - containerPort: 8888
        resources:
          requests:
            memory: "256Mi"
      restartPolicy: "OnFailure"
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata:
  name: warm
spec:
  replicas: 1
  sandboxTemplateRef:
    name: python
`

func claim(name, more string) string {
	return `apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata:
  name: ` + name + `
spec:
  warmPoolRef:
    name: warm
  additionalPodMetadata:
    labels:
      sandbox.users.io/serving-group: demo
  lifecycle:
    shutdownPolicy: Delete
` + more
}

// full waits until the pool has a Sandbox that is ready, and returns its name.
func (r *agentRig) full(t *testing.T, not string) string {
	t.Helper()
	selector := "agents.x-k8s.io/warm-pool-sandbox=" + r.get(t, "sandboxwarmpool", "warm").Metadata.UID
	var all []object
	if !covetest.Eventually(slow, func() bool {
		all = r.list(t, "sandbox", "-l", selector)
		return len(all) == 1 && all[0].Metadata.Name != not && all[0].condition("Ready").Status == "True" && r.get(t, "sandboxwarmpool", "warm").Status.ReadyReplicas == 1
	}) {
		t.Fatalf("the pool has %+v", all)
	}
	return all[0].Metadata.Name
}

func agentClaim(t *testing.T, r *agentRig) {
	r.apply(t, pool)
	waiting := r.full(t, "")
	r.apply(t, claim("first", ""))
	c := r.await(t, "sandboxclaim", "first", "Ready", "True", "")
	if c.Status.Sandbox.Name != waiting {
		t.Errorf("the claim has %s, and %s was waiting", c.Status.Sandbox.Name, waiting)
	}
	r.full(t, waiting)
	sb := r.get(t, "sandbox", waiting)
	got, err := r.cove.Client.Get(t.Context(), sb.Metadata.Annotations["cove.sh/sandbox"])
	if err != nil || got.Network == nil || got.Network.Preset != sandbox.NetworkNone || len(got.Network.Rules) != 0 {
		t.Errorf("the sandbox is %+v, %v", got, err)
	}

	// With variables, a claim gets a sandbox of its own.
	r.apply(t, claim("own", "  env: [{name: WORD, value: mine}]\n"))
	c = r.await(t, "sandboxclaim", "own", "Ready", "True", "")
	if c.Status.Sandbox.Name != "own" {
		t.Errorf("the claim has %s", c.Status.Sandbox.Name)
	}
	r.cove.Shows(t, r.get(t, "sandbox", "own").Metadata.Annotations["cove.sh/sandbox"], "echo $WORD", "mine")
	r.apply(t, strings.Replace(claim("network", ""), "    labels:", "    annotations: {cove.sh/network: open}\n    labels:", 1))
	r.await(t, "sandboxclaim", "network", "Ready", "False", "Unsupported")

	r.kubectl(t, "patch", "sandboxclaim", "own", "--type=merge", "-p", `{"spec":{"lifecycle":{"shutdownTime":"2020-01-01T00:00:00Z"}}}`)
	r.kubectl(t, "wait", "--for=delete", "sandboxclaim/own", "--timeout=3m")
	r.kubectl(t, "delete", "sandboxclaim", "first", "network", "--timeout=3m")
	r.kubectl(t, "wait", "--for=delete", "sandbox/"+waiting, "sandbox/own", "--timeout=3m")
}

// agentCoveAway deletes an object while Cove is away.
func agentCoveAway(t *testing.T, r *agentRig) {
	r.apply(t, counter("away", ""))
	id := r.await(t, "sandbox", "away", "Ready", "True", "").Metadata.Annotations["cove.sh/sandbox"]
	r.cove.Kill()
	r.kubectl(t, "delete", "sandbox", "away", "--wait=false")
	if err := r.Kubectl(t.Context(), nil, io.Discard, "wait", "--for=delete", "sandbox/away", "--timeout=5s"); err == nil {
		t.Error("the object is gone, and its sandbox may not be")
	}
	if err := r.cove.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.coveURL = r.proxy(t, r.cove.URL, nil).URL // it listens elsewhere
	r.kill()
	r.start(t)
	r.kubectl(t, "wait", "--for=delete", "sandbox/away", "--timeout=3m")
	if got, err := r.cove.Client.Get(t.Context(), id); err != nil || got.State != sandbox.StateKilled {
		t.Errorf("the sandbox is %+v, %v", got, err)
	}
}

// agentKilled kills the controller at each step of what it does.
func agentKilled(t *testing.T, r *agentRig) {
	waiting := r.full(t, "")
	r.eachStep(t, "make", func(n int) {
		name := fmt.Sprintf("make-%d", n)
		r.apply(t, counter(name, ""))
	}, func(n int) bool {
		o := r.get(t, "sandbox", fmt.Sprintf("make-%d", n))
		return o.condition("Ready").Status == "True"
	}, func(n int) {
		o := r.get(t, "sandbox", fmt.Sprintf("make-%d", n))
		all := r.made(t, o.Metadata.UID)
		if len(all) != 1 {
			t.Fatalf("killed at step %d: the sandboxes are %+v", n, all)
		}
		if jobs, err := r.cove.Client.ListJobs(t.Context(), all[0].ID, sandbox.Page{}); err != nil || commands(jobs.Items) != 1 {
			t.Errorf("killed at step %d: the jobs are %+v, %v", n, jobs, err)
		}
		r.kubectl(t, "delete", "sandbox", o.Metadata.Name, "--timeout=3m")
	})
	r.eachStep(t, "claim", func(n int) {
		r.apply(t, claim(fmt.Sprintf("claim-%d", n), ""))
	}, func(n int) bool {
		o := r.get(t, "sandboxclaim", fmt.Sprintf("claim-%d", n))
		return o.condition("Ready").Status == "True" && r.get(t, "sandboxwarmpool", "warm").Status.ReadyReplicas == 1
	}, func(n int) {
		name := fmt.Sprintf("claim-%d", n)
		waiting = r.full(t, waiting)
		all := r.list(t, "sandbox", "-l", "agents.x-k8s.io/claim-uid="+r.get(t, "sandboxclaim", name).Metadata.UID)
		if len(all) != 1 || len(r.made(t, all[0].Metadata.UID)) != 1 {
			t.Fatalf("killed at step %d: the claim has %+v", n, all)
		}
		r.kubectl(t, "delete", "sandboxclaim", name, "--timeout=3m")
		r.kubectl(t, "wait", "--for=delete", "sandbox/"+all[0].Metadata.Name, "--timeout=3m")
	})
}

// eachStep does something again and again, and kills the controller at the first step, the
// second, and so on until it needs no more. After each, another controller completes it.
func (r *agentRig) eachStep(t *testing.T, what string, do func(n int), complete func(n int) bool, check func(n int)) {
	t.Helper()
	for n := 1; ; n++ {
		r.steps.arm(n)
		do(n)
		covetest.Eventually(slow, func() bool { return r.dead() || complete(n) })
		r.steps.arm(0)
		killed := r.dead()
		if killed {
			r.start(t)
		}
		if !covetest.Eventually(slow, func() bool { return complete(n) }) {
			t.Fatalf("%s, killed at step %d: it does not complete", what, n)
		}
		check(n)
		if !killed {
			t.Logf("%s: killed at each of %d steps", what, n-1)
			return
		}
		if n > 60 {
			t.Fatalf("%s has no end", what)
		}
	}
}
