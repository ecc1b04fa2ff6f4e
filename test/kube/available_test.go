//go:build kube

package kube

import (
	"crypto/rand"
	"encoding/base64"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/kubetest"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// backends are what an installation keeps its state in, outside of the cluster.
type backends struct {
	database *postgrestest.Server
	bucket   *s3test.Server
}

// Ports of [kubetest.ControlAddress] at which Pods reach them.
const databasePort, bucketPort = 5432, 9000

// prepare makes the Secrets of two servers with the backends, as docs/kubernetes.md says.
func (b *backends) prepare(t *testing.T, i *installation) {
	t.Helper()
	key := make([]byte, 32)
	rand.Read(key)
	front, err := url.Parse(b.bucket.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var dialer net.Dialer
	for port, to := range map[int][2]string{databasePort: {"unix", b.database.Socket()}, bucketPort: {"tcp", front.Host}} {
		if err := i.Forward(t.Context(), port, func() (net.Conn, error) { return dialer.DialContext(t.Context(), to[0], to[1]) }); err != nil {
			t.Fatal(err)
		}
	}
	at := url.Values{"host": {kubetest.ControlAddress}, "port": {strconv.Itoa(databasePort)}, "sslmode": {"disable"}}
	i.kubectl(t, "create", "namespace", "cove")
	i.kubectl(t, "-n", "cove", "create", "secret", "generic", "cove-server",
		"--from-literal=COVE_STORE="+b.database.Address(at).Reveal(), "--from-literal=COVE_SECRETS_KEY="+base64.StdEncoding.EncodeToString(key))
	i.kubectl(t, "-n", "cove", "create", "secret", "generic", "cove-objects",
		"--from-literal=COVE_OBJECTS="+b.bucket.Address(), "--from-literal=AWS_ENDPOINT_URL_S3=http://"+net.JoinHostPort(kubetest.ControlAddress, strconv.Itoa(bucketPort)),
		"--from-literal=AWS_ACCESS_KEY_ID="+s3test.AccessKey, "--from-literal=AWS_SECRET_ACCESS_KEY="+s3test.SecretKey)
	i.components, i.servers = []string{"objects", "high-availability"}, 2
}

// TestHighAvailability installs two servers with PostgreSQL and S3, and takes away one thing
// after the other. Sandboxes go on.
func TestHighAvailability(t *testing.T) {
	b := &backends{postgrestest.Start(t), s3test.Start(t)}
	i := install(t, func(i *installation) { b.prepare(t, i) })
	i.awaitNodes(t)
	interval, kept := int64(sandbox.MinCheckpointInterval/time.Second), covetest.Small()
	kept.CheckpointIntervalSeconds = &interval
	w := i.watch(t, kept)
	t.Run("life", func(t *testing.T) { life(t, i) })
	for _, scene := range []struct {
		name string
		test func(*testing.T, *installation, *backends)
	}{
		{"server is killed", serverKilled},
		{"database crashes", databaseCrashes},
		{"pod is drained without the object store", drainedWithoutStore},
		{"image changes", imageChangesByHand},
	} {
		t.Run(scene.name, func(t *testing.T) {
			scene.test(t, i, b)
			w.goesOn(t)
		})
	}
	// The last one: what is left is one machine.
	t.Run("machine dies", func(t *testing.T) { machineDies(t, i, w) })
}

// watched are sandboxes whose programs run through all that happens.
type watched struct {
	*installation
	pids map[string]string // by sandbox
}

// ticker is a program that writes the time of its own memory to a file, ever again.
const ticker = `(n=0; while :; do n=$((n+1)); echo $n > now; sleep 0.1; done) > /dev/null 2>&1 & echo $!`

// watch starts such a sandbox with a ticker on each node.
func (i *installation) watch(t *testing.T, req sandbox.CreateRequest) *watched {
	t.Helper()
	w := &watched{i, map[string]string{}}
	for _, id := range i.eachOf(t, req) {
		w.pids[id] = i.sh(t, id, ticker)
	}
	return w
}

// goesOn checks that the programs run on, as soon as calls are answered.
func (w *watched) goesOn(t *testing.T) {
	t.Helper()
	w.awaitNodes(t)
	for id, pid := range w.pids {
		w.ticks(t, id)
		if got := w.sh(t, id, "kill -0 "+pid+" && echo lives"); got != "lives" {
			t.Errorf("the program of %s is another one: %q", id, got)
		}
	}
}

// ticks checks that a ticker runs.
func (i *installation) ticks(t *testing.T, id string) {
	t.Helper()
	first := i.sh(t, id, "cat now")
	if !covetest.Eventually(30*time.Second, func() bool { return i.sh(t, id, "cat now") != first }) {
		t.Errorf("what ran in sandbox %s has stopped", id)
	}
}

// awaitOther waits until another Pod than before is the active server, and answers. It may
// have the same name.
func (i *installation) awaitOther(t *testing.T, uid string) {
	t.Helper()
	if !covetest.Eventually(2*time.Minute, func() bool { return uidOf(t, i, "cove", i.active(t)) != uid }) {
		t.Fatal("the server is still active")
	}
	i.awaitNodes(t)
}

// serverKilled kills the active server: the other one takes over, and has the template that
// was built.
func serverKilled(t *testing.T, i *installation, _ *backends) {
	active := i.active(t)
	tm, err := i.client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "mine", Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Run: []sandbox.TemplateStep{{Run: "echo built >/etc/mine"}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !covetest.Eventually(time.Minute, func() bool {
		return strings.Contains(i.kubectl(t, "-n", "cove", "logs", active), `the object store has the files of a template","digest":"`+tm.Digest)
	}) {
		t.Fatal("the files of the template are not in the object store")
	}
	before := uidOf(t, i, "cove", active)
	i.kubectl(t, "-n", "cove", "delete", "pod", active, "--grace-period=0", "--force", "--wait=false")
	i.awaitOther(t, before)
	req := covetest.Small()
	req.Template = tm.Name
	sb, err := i.client.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := i.sh(t, sb.ID, "cat /etc/mine"); got != "built" {
		t.Errorf("a sandbox of the template says %q", got)
	}
	i.kill(t, sb.ID)
}

// databaseCrashes takes the database away: servers wait for it.
func databaseCrashes(t *testing.T, i *installation, b *backends) {
	b.database.Crash(t)
	if !covetest.Eventually(time.Minute, func() bool { _, err := i.client.ListNodes(t.Context()); return err != nil }) {
		t.Error("without the database, calls are answered")
	}
	b.database.Run(t)
	i.awaitNodes(t)
}

// drainedWithoutStore deletes a Pod of the pool while the object store is down: its sandboxes
// go on there, and move when the store works again.
func drainedWithoutStore(t *testing.T, i *installation, b *backends) {
	sb, err := i.client.Create(t.Context(), covetest.Small())
	if err != nil {
		t.Fatal(err)
	}
	pid := i.sh(t, sb.ID, ticker)
	b.bucket.Break(s3test.Unavailable)
	before := uidOf(t, i, "cove-nodes", sb.Node)
	i.kubectl(t, "-n", "cove-nodes", "delete", "pod", sb.Node, "--wait=false")
	var n sandbox.Node
	if !covetest.Eventually(time.Minute, func() bool {
		n = i.nodes(t)[sb.Node]
		return n.Move != nil && strings.Contains(n.Move.Waiting, "the object store does not work")
	}) {
		t.Errorf("the node that waits is %+v, %+v", n, n.Move)
	}
	i.ticks(t, sb.ID)
	b.bucket.Break(nil)
	if !covetest.Eventually(3*time.Minute, func() bool {
		now, err := i.client.Get(t.Context(), sb.ID)
		return err == nil && now.State == sandbox.StatePaused && now.Stored != ""
	}) {
		t.Error("the sandbox was not stored")
	}
	i.ticks(t, sb.ID)
	if got := i.sh(t, sb.ID, "kill "+pid+" && echo killed"); got != "killed" {
		t.Errorf("the process has not moved: %q", got)
	}
	i.kill(t, sb.ID)
	if !covetest.Eventually(3*time.Minute, func() bool {
		return i.kubectl(t, "-n", "cove-nodes", "get", "pod", sb.Node, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}") != before
	}) {
		t.Error("the Pod was not replaced")
	}
	i.rolledOut(t)
}

// imageChangesByHand changes the image. Kubernetes replaces the Pods of the pool; those of
// the servers are deleted as docs/kubernetes.md says, the one on standby first.
func imageChangesByHand(t *testing.T, i *installation, _ *backends) {
	active := i.active(t)
	before := uidOf(t, i, "cove", active)
	standby := map[string]string{"cove-server-0": "cove-server-1", "cove-server-1": "cove-server-0"}[active]
	i.tag = "next"
	i.apply(t)
	i.kubectl(t, "-n", "cove", "delete", "pod", standby)
	for _, state := range []string{"create", "jsonpath={.status.phase}=Running"} {
		i.kubectl(t, "-n", "cove", "wait", "--for="+state, "pod/"+standby, "--timeout=2m")
	}
	i.kubectl(t, "-n", "cove", "delete", "pod", active)
	i.awaitOther(t, before)
	i.rolledOut(t)
	i.hasImage(t, "next")
}

// machineDies ends the machine of the active server and of one Pod of the pool. The server on
// the other machine takes over. The sandbox there that has automatic checkpoints continues from
// its last one, and one without has failed with the reason.
func machineDies(t *testing.T, i *installation, w *watched) {
	machineOf := func(namespace, pod string) string {
		return i.kubectl(t, "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
	}
	kept, ends := w.kept(t)
	stays := map[string]string{"cove-node-0": "cove-node-1", "cove-node-1": "cove-node-0"}[ends]
	lost := i.onEach(t)[ends]
	machine := machineOf("cove-nodes", ends)
	if active := i.active(t); machineOf("cove", active) != machine {
		before := uidOf(t, i, "cove", active)
		i.kubectl(t, "-n", "cove", "delete", "pod", active)
		i.awaitOther(t, before)
	}
	if err := i.StopNode(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	if !covetest.Eventually(5*time.Minute, func() bool {
		got, err := i.client.Get(t.Context(), kept)
		return err == nil && got.State == sandbox.StatePaused
	}) {
		t.Error("the sandbox with a checkpoint does not wait to continue")
	}
	i.ticks(t, kept)
	if got := i.sh(t, kept, "kill -0 "+w.pids[kept]+" && echo lives"); got != "lives" {
		t.Errorf("what continues is not the program of the checkpoint: %q", got)
	}
	if got, err := i.client.Get(t.Context(), kept); err != nil || got.Node != stays {
		t.Errorf("the sandbox that continues is %+v, %v", got, err)
	}
	i.awaitFailed(t, lost)
}

// kept returns a sandbox whose last checkpoint is stored, and its node.
func (w *watched) kept(t *testing.T) (id, node string) {
	t.Helper()
	if !covetest.Eventually(3*time.Minute, func() bool {
		for id = range w.pids {
			w.sh(t, id, "true") // so that the sandbox is in use
			sb, err := w.client.Get(t.Context(), id)
			if err == nil && sb.LastCheckpoint != nil && sb.LastCheckpoint.Stored == sandbox.StoredBoth {
				node = sb.Node
				return true
			}
		}
		return false
	}) {
		t.Fatal("no checkpoint is stored")
	}
	return id, node
}
