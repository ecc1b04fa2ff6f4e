package checkpoints

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// subject is a sandbox in which all the programs run.
type subject struct {
	d  *covetest.Daemon
	id string
	// hostname is the sandbox's host name.
	hostname string
	// lines and input are jobs: one writes numbered lines, the other answers its input.
	lines, input string
	// asked counts the inputs that input has got, and words are its answers.
	words []string
	drawn *draws
}

// draws are the random numbers that programs have drawn, in all copies of a
// subject and at all times. No two are the same.
type draws struct {
	mu sync.Mutex
	by map[string]string // guarded by mu
}

// add notes what somebody drew.
func (d *draws) add(t *testing.T, who string, numbers []string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range numbers {
		if before := d.by[n]; before != "" {
			t.Errorf("%s drew the random bytes %s, as %s had", who, n, before)
		}
		d.by[n] = who
	}
}

// report is what the programs of a subject say about themselves.
type report struct {
	Answers  map[string]any     `json:"answers"`
	Ticks    map[string]float64 `json:"ticks"`
	Failed   []string           `json:"failed"`
	Time     float64            `json:"time"`
	Hostname string             `json:"hostname"`
	// Who is the answer of a program that was already running: the host name, its
	// COVE_FORK_INDEX, and a variable of its own.
	Who    []string `json:"who"`
	Random []string `json:"random"`
	// asked and answered are when, by the host's clock.
	asked, answered time.Time
}

// build starts the programs in a new sandbox and waits until all answer.
func build(t *testing.T, d *covetest.Daemon, name string, mib int) *subject {
	t.Helper()
	s := d.Create(t, sandbox.CreateRequest{Name: name, Env: map[string]string{"BORN": "in " + name}, Resources: sandbox.Resources{MemoryMiB: 2048, VCPUs: 2}})
	w := &subject{d: d, id: s.ID, hostname: name, drawn: &draws{by: map[string]string{}}}
	for path, text := range map[string]string{"w.py": programPython, "w.js": programNode, "make/Makefile": programMake, "tmux.sh": programTmux} {
		_, err := d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: "/workspace/w/" + path, MakeParents: true}, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		"exec python3 w/w.py memory " + strconv.Itoa(mib), "exec python3 w/w.py files", "exec python3 w/w.py ipc", "exec python3 w/w.py web",
		"exec python3 w/w.py database", "exec node w/w.js", "exec strace -o w/trace perl -e 'select(undef, undef, undef, 0.1) while 1'",
	} {
		w.background(t, sandbox.ExecRequest{Shell: line})
	}
	w.background(t, sandbox.ExecRequest{Shell: "chmod 777 w; exec python3 w/w.py other_user 4321", User: "root"})
	d.Sh(t, s.ID, "tmux new-session -d -s work -x 200 -y 50 bash && tmux send-keys -t work '. w/tmux.sh' Enter")
	w.lines = w.background(t, sandbox.ExecRequest{Shell: `exec perl -e '$| = 1; while (1) { $i++; print "line $i\n"; select(undef, undef, undef, 0.05) }'`})
	w.input = w.background(t, sandbox.ExecRequest{Shell: "while read word; do echo heard $word; done; echo end of input", OpenStdin: true})
	w.await(t, "-S w/memory -a -S w/files -a -S w/ipc -a -S w/database -a -S w/other_user -a -S w/node")
	return w
}

// background starts a job and returns its id.
func (w *subject) background(t *testing.T, req sandbox.ExecRequest) string {
	t.Helper()
	req.Background = true
	job, err := w.d.Client.Exec(t.Context(), w.id, req, nil)
	if err != nil {
		t.Fatalf("start %s: %v", req.Shell, err)
	}
	return job.ID
}

// at is the same subject in another sandbox, such as a fork.
func (w *subject) at(id, hostname string) *subject {
	other := *w
	other.id, other.hostname, other.words = id, hostname, slices.Clone(w.words)
	return &other
}

// ask has all programs report.
func (w *subject) ask(t *testing.T, skip ...string) report {
	t.Helper()
	r := report{asked: time.Now()}
	out := w.sh(t, "python3 w/w.py everything "+strings.Join(skip, " "))
	r.answered = time.Now()
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(r.Failed) > 0 {
		t.Fatalf("in %s: %s", w.hostname, strings.Join(r.Failed, "\n"))
	}
	if len(r.Random) != 3 {
		t.Errorf("in %s: random numbers %q; want 3", w.hostname, r.Random)
	}
	w.drawn.add(t, w.hostname+" ("+w.id+")", r.Random)
	return r
}

// say sends a text to one program and returns its answer.
func (w *subject) say(t *testing.T, words string) string {
	t.Helper()
	return strings.TrimSpace(w.sh(t, "python3 w/w.py ask "+words))
}

// mutate has all programs change their state in a way that a second call with
// the same number undoes.
func (w *subject) mutate(t *testing.T, n int) {
	t.Helper()
	w.sh(t, "python3 w/w.py mutate "+strconv.Itoa(n))
}

// check asks all programs and compares their answers with the earlier ones: the same
// state, all of them alive, and the right clock and host name.
func (w *subject) check(t *testing.T, when string, before report) report {
	t.Helper()
	now := w.ask(t)
	if diff := cmp.Diff(before.Answers, now.Answers); diff != "" {
		t.Errorf("%s: %s: state is not what it was (-before +now):\n%s", w.hostname, when, diff)
	}
	for _, name := range slices.Sorted(maps.Keys(before.Ticks)) {
		if now.Ticks[name] <= before.Ticks[name] {
			t.Errorf("%s: %s: %s does not go on: %v, and before %v", w.hostname, when, name, now.Ticks[name], before.Ticks[name])
		}
	}
	w.checkSelf(t, when, now)
	return now
}

// checkSelf checks what a sandbox knows about itself and the time.
func (w *subject) checkSelf(t *testing.T, when string, r report) {
	t.Helper()
	inside := time.Unix(0, int64(r.Time*1e9))
	if inside.Before(r.asked.Add(-time.Second)) || inside.After(r.answered.Add(time.Second)) {
		t.Errorf("%s: %s: the clock inside was %v between %v and %v outside", w.hostname, when, inside, r.asked, r.answered)
	}
	if r.Hostname != w.hostname || r.Who[0] != w.hostname {
		t.Errorf("%s: %s: the host name is %q to a new process and %q to an old one", w.hostname, when, r.Hostname, r.Who[0])
	}
}

// checkJobs checks that background jobs are listed, that their output has
// neither holes nor repeats, and that input still reaches them.
func (w *subject) checkJobs(t *testing.T, when string) {
	t.Helper()
	jobs, err := w.d.Client.ListJobs(t.Context(), w.id, sandbox.Page{})
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]sandbox.JobState{}
	for _, j := range jobs.Items {
		states[j.ID] = j.State
	}
	for what, id := range map[string]string{"lines": w.lines, "input": w.input} {
		if states[id] != sandbox.JobRunning {
			t.Errorf("%s: %s: the job %s is %q; want running", w.hostname, when, what, states[id])
		}
	}
	before := w.output(t, w.lines)
	more := func() bool { return len(w.output(t, w.lines)) > len(before) }
	if !covetest.Eventually(30*time.Second, more) {
		t.Errorf("%s: %s: the job writes no more after %d bytes", w.hostname, when, len(before))
	}
	lines := strings.Split(strings.TrimSuffix(w.output(t, w.lines), "\n"), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Errorf("%s: %s: line %d of %d is %q", w.hostname, when, i+1, len(lines), line)
			break
		}
	}
	word := fmt.Sprintf("%s-%d", w.hostname, len(w.words))
	w.words = append(w.words, word)
	if err := w.d.Client.WriteInput(t.Context(), w.id, w.input, []byte(word+"\n"), false); err != nil {
		t.Fatalf("%s: %s: write to the job's input: %v", w.hostname, when, err)
	}
	want := "heard " + strings.Join(w.words, "\nheard ") + "\n"
	heard := func() bool { return w.output(t, w.input) == want }
	if !covetest.Eventually(30*time.Second, heard) {
		t.Errorf("%s: %s: the job with open input has written %q; want %q", w.hostname, when, w.output(t, w.input), want)
	}
}

// output returns all that a job has written.
func (w *subject) output(t *testing.T, job string) string {
	t.Helper()
	out, err := w.d.Client.ReadOutput(t.Context(), w.id, job, sandbox.OutputRequest{Stream: sandbox.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	if out.Offset != 0 {
		t.Fatalf("output of job %s begins at %d", job, out.Offset)
	}
	return string(out.Data)
}

// make starts the build of a project that takes some seconds, waits until it
// is under way and returns its job.
func (w *subject) make(t *testing.T, pause string) string {
	t.Helper()
	job := w.background(t, sandbox.ExecRequest{Shell: "rm -f *.o *.c log result; make -j4 PAUSE=" + pause, WorkDir: "/workspace/w/make"})
	w.await(t, "-s w/make/log")
	return job
}

// await waits inside the sandbox until a condition of test(1) holds. It polls rarely:
// each poll costs a process, which slows down the program that it waits for.
func (w *subject) await(t *testing.T, condition string) {
	t.Helper()
	w.sh(t, "until [ "+condition+" ]; do sleep 0.1; done")
}

// sh runs a line and returns its output. It has no time limit of its own, because many
// sandboxes ask all of their programs at the same time.
func (w *subject) sh(t *testing.T, line string) string {
	t.Helper()
	res, err := w.d.Exec(t.Context(), w.id, sandbox.ExecRequest{Shell: line, TimeoutMS: 300_000})
	if err != nil || res.Job.ExitCode != 0 {
		t.Fatalf("%s in %s: %+v, %v", line, w.hostname, res, err)
	}
	return res.Stdout
}

// checkMade waits for the end of the build and checks what it made.
func (w *subject) checkMade(t *testing.T, when, job string) {
	t.Helper()
	j, err := w.d.Client.Attach(t.Context(), w.id, job, sandbox.AttachRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if j.ExitCode != 0 {
		t.Errorf("%s: %s: make ended with %d: %s", w.hostname, when, j.ExitCode, w.output(t, job))
		return
	}
	if got := w.sh(t, "cd w/make; cat result; echo; sort log | uniq -c | grep -vc '  1 ' || true; wc -l < log"); got != madeResult+"\n0\n21\n" {
		t.Errorf("%s: %s: make made, repeated, and steps: %q", w.hostname, when, got)
	}
}
