package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

func (s *server) ps(t testing.TB) map[int32]*agentv1.Process {
	t.Helper()
	res, err := s.ListProcesses(t.Context(), connect.NewRequest(&agentv1.ListProcessesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	m := map[int32]*agentv1.Process{}
	for _, p := range res.Msg.GetProcesses() {
		m[p.GetPid()] = p
	}
	return m
}

func TestListProcesses(t *testing.T) {
	s := start(t)
	job := s.background(t, &agentv1.ExecRequest{Shell: "setsid sleep 300 & sleep 300"})
	r := s.py(t, "import os, subprocess\np = subprocess.Popen(['sleep', '301'], start_new_session=True)\nos.getpid(), p.pid")
	var kernel, child int32
	if _, err := fmt.Sscanf(r.value(), "(%d, %d)", &kernel, &child); err != nil {
		t.Fatal(err)
	}
	var all map[int32]*agentv1.Process
	eventually(t, "all are there", func() bool {
		all = s.ps(t)
		n := 0
		for _, p := range all {
			if p.GetJobId() == job.GetJobId() {
				n++
			}
		}
		return n == 3 && all[child].GetName() == "sleep" && all[child].GetState() == "S"
	})
	self := all[int32(os.Getpid())]
	if self == nil || self.GetMemoryBytes() == 0 || self.GetThreads() < 2 || self.GetParent() == 0 || self.GetJobId() != "" ||
		time.Since(time.Unix(0, self.GetStartedUnixNano())) > time.Hour || len(self.GetCommand()) == 0 {
		t.Errorf("the agent: %v", self)
	}
	if p := all[kernel]; p.GetContext() != "python/default" || p.GetCpuNanos() == 0 || !strings.Contains(p.GetName(), "python") {
		t.Errorf("the kernel: %v", p)
	}
	if p := all[child]; p.GetContext() != "python/default" || p.GetParent() != kernel || strings.Join(p.GetCommand(), " ") != "sleep 301" || p.GetState() != "S" {
		t.Errorf("its child: %v", p)
	}
	signal := func(pid, sig int32) error {
		_, err := s.SignalProcess(t.Context(), connect.NewRequest(&agentv1.SignalProcessRequest{Pid: pid, Signal: sig}))
		return err
	}
	if err := signal(child, 9); err != nil {
		t.Error(err)
	}
	if r := s.py(t, "p.wait()"); r.value() != "-9" {
		t.Errorf("got %s", r.value())
	}
	wantCode(t, signal(child, 9), connect.CodeNotFound, "no process")
	wantCode(t, signal(int32(os.Getpid()), 9), connect.CodePermissionDenied, "the sandbox itself")
	wantCode(t, signal(kernel, 0), connect.CodeInvalidArgument, "not a signal")
	wantCode(t, signal(-1, 9), connect.CodeInvalidArgument, "not a process")
}

func TestProcessPercent(t *testing.T) {
	l := &usageLog{}
	t0 := time.Unix(1000, 0)
	p := &process{pid: 5, start: 7, started: t0.Add(-10 * time.Second), cpu: 5 * time.Second}
	l.percent([]*process{p}, t0)
	if p.percent != 50 {
		t.Errorf("since its start: %v", p.percent)
	}
	p.cpu += 3 * time.Second
	l.percent([]*process{p}, t0.Add(2*time.Second))
	if p.percent != 150 {
		t.Errorf("since the last look: %v", p.percent)
	}
	q := &process{pid: 5, start: 8, started: t0.Add(time.Second), cpu: 0}
	l.percent([]*process{q}, t0.Add(3*time.Second))
	if q.percent != 0 {
		t.Errorf("another of this number: %v", q.percent)
	}
}

func FuzzParseStat(f *testing.F) {
	data, _ := os.ReadFile("/proc/self/stat")
	f.Add(data)
	f.Add([]byte("1 (a) b) S 2 3 4"))
	f.Add([]byte("1 ()"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p := parseStat(data); p != nil && (p.cpu < 0 || p.threads < 0) {
			t.Errorf("%+v", p)
		}
	})
}

func TestExecCode(t *testing.T) {
	needsParser(t)
	t.Setenv("TMPDIR", t.TempDir())
	s := start(t)
	if err := os.WriteFile(s.dir+"/mine.py", []byte("v = 3"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.dir+"/mine.js", []byte("exports.v = 4"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		language, code, stdout, stderr string
		exit                           int32
	}{
		{"python", "import mine, sys\nprint(mine.v, sys.stdin.read())\nsys.exit(4)", "3 in\n", "", 4},
		{"python", "1/0", "", "main.py\", line 1", 1},
		{"javascript", "const m = require('./mine.js'); import { sep } from 'path'; await null\nconsole.log(m.v + sep); process.exit(5)", "4/\n", "", 5},
		{"javascript", "\nthrow new Error('no')", "", "main.js:2:", 1},
		{"bash", "read x; echo $x $PWD; exit 6", "in " + s.dir + "\n", "", 6},
		{"go", "import (\"fmt\"; \"os\")\nfmt.Println(\"go\"); os.Exit(7)", "go\n", "", 7},
	} {
		r := s.exec(t, &agentv1.ExecRequest{Language: tt.language, Code: tt.code, Stdin: []byte("in")})
		if r.stdout.String() != tt.stdout || !strings.Contains(r.stderr.String(), tt.stderr) || r.last.GetExitCode() != tt.exit {
			t.Errorf("%s: got %q %q exit %d", tt.code, r.stdout.String(), r.stderr.String(), r.last.GetExitCode())
		}
		first, rest, _ := strings.Cut(strings.TrimSpace(tt.code), "\n")
		if rest != "" {
			first += " …"
		}
		if argv := r.last.GetArgv(); !slices.Equal(argv, []string{tt.language, first}) {
			t.Errorf("the job is listed as %q", argv)
		}
		eventually(t, "the code's files are gone", func() bool {
			left, err := os.ReadDir(os.TempDir())
			return err == nil && len(left) == 0
		})
	}
	_, err := s.tryExec(t, &agentv1.ExecRequest{Language: "perl", Code: "1"})
	wantCode(t, err, connect.CodeInvalidArgument, "not known")
	_, err = s.tryExec(t, &agentv1.ExecRequest{Language: "bash", Code: "1", Shell: "ls"})
	wantCode(t, err, connect.CodeInvalidArgument, "one of them")
}
