package covetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite"

	"github.com/cove-sh/cove/sandbox"
)

// Machines is what the daemon's store says of machines and checkpoints. A
// machine has the id of its sandbox until that one is resumed, restored or
// merged.
type Machines struct {
	// Instances are the machines of running sandboxes, by the sandbox; Last are
	// those that all sandboxes, ended ones too, have now or had last.
	Instances, Last map[string]string
	// Checkpoints are those that a snapshot or a living sandbox refers to.
	Checkpoints []string
}

// Machines reads the store of the daemon, which has to run.
func (d *Daemon) Machines(ctx context.Context) (Machines, error) {
	m := Machines{Instances: map[string]string{}, Last: map[string]string{}}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(d.StateDir, "cove.db")+"?_busy_timeout=10000")
	if err != nil {
		return m, err
	}
	defer db.Close()
	err = query(ctx, db, "SELECT id, instance FROM sandboxes WHERE state = 'running'", func(id, instance string) {
		m.Instances[id] = instance
	})
	if err != nil {
		return m, err
	}
	err = query(ctx, db, "SELECT id, instance FROM sandboxes", func(id, instance string) { m.Last[id] = instance })
	if err != nil {
		return m, err
	}
	const living = " FROM sandboxes WHERE state NOT IN ('killed', 'failed')"
	refer := "SELECT checkpoint, ''" + living + " UNION SELECT fork_point, ''" + living + " UNION SELECT checkpoint, '' FROM snapshots"
	err = query(ctx, db, refer, func(checkpoint, _ string) {
		if checkpoint != "" {
			m.Checkpoints = append(m.Checkpoints, checkpoint)
		}
	})
	slices.Sort(m.Checkpoints)
	return m, err
}

// query calls f for each row of two columns.
func query(ctx context.Context, db *sql.DB, q string, f func(a, b string)) error {
	rows, err := db.QueryContext(ctx, q)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var a, b string
		if err := rows.Scan(&a, &b); err != nil {
			return err
		}
		f(a, b)
	}
	return rows.Err()
}

// Groups returns the names of the cgroups of all cells and standbys that have a
// directory.
func (d *Daemon) Groups() []string {
	var names []string
	files, _ := filepath.Glob(filepath.Join(d.StateDir, "engine", "*", "*", "origin.json"))
	for _, f := range files {
		var o struct {
			Group string `json:"group"`
		}
		if data, err := os.ReadFile(f); err == nil && json.Unmarshal(data, &o) == nil && o.Group != "" {
			names = append(names, o.Group)
		}
	}
	return names
}

// Leftovers compares what the daemon has on the machine with what its store
// says, and lists what is too much or missing. Groups are the cgroups that
// were seen, of which those of no cell must be gone.
func (d *Daemon) Leftovers(ctx context.Context, groups []string) ([]string, error) {
	m, err := d.Machines(ctx)
	if err != nil {
		return nil, err
	}
	var wrong []string
	compare := func(what string, got, want []string) {
		for _, g := range got {
			if !slices.Contains(want, g) {
				wrong = append(wrong, fmt.Sprintf("%s %s belongs to nothing", what, g))
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				wrong = append(wrong, fmt.Sprintf("%s %s is missing", what, w))
			}
		}
	}
	var running, standbys []string
	for _, instance := range m.Instances {
		running = append(running, instance)
	}
	for name := range d.Standbys() {
		standbys = append(standbys, name)
	}
	compare("cell", d.Living(), running)
	compare("directory of cell", d.CellDirs(), running)
	for _, name := range names(filepath.Join(d.StateDir, "engine", "standby")) {
		// A file is what the engine unpacks there for a moment.
		if isStandby(name) && !slices.Contains(standbys, name) {
			wrong = append(wrong, "directory of standby "+name+" has no process")
		}
	}
	kept := slices.DeleteFunc(names(filepath.Join(d.StateDir, "engine", "checkpoints")), func(name string) bool {
		return strings.Contains(name, "golden-") // the engine's own, for fresh sandboxes
	})
	compare("checkpoint", kept, m.Checkpoints)
	now := d.Groups()
	for _, dir := range groupDirs(slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return slices.Contains(now, g) })) {
		wrong = append(wrong, "cgroup "+dir+" belongs to nothing")
	}
	spools, _ := filepath.Glob(filepath.Join(d.StateDir, "merge-*"))
	compare("file", spools, nil)
	return wrong, nil
}

// Tidy waits until nothing is left over, and says what still is after the
// limit.
func (d *Daemon) Tidy(ctx context.Context, groups []string, limit time.Duration) error {
	var wrong []string
	var err error
	tidy := func() bool {
		wrong, err = d.Leftovers(ctx, groups)
		return err == nil && len(wrong) == 0
	}
	if Eventually(limit, tidy) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("the machine and the store differ:\n%s", strings.Join(wrong, "\n"))
}

func names(dir string) []string {
	entries, _ := os.ReadDir(dir) // it may not be there
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name()
	}
	return list
}

// Target is a process of a machine, which can be killed.
type Target struct {
	Machine string
	PID     int
}

// Targets returns the cells of these machines that live, or their sentries.
func (d *Daemon) Targets(machines []string, sentries bool) []Target {
	var list []Target
	cells := d.Cells()
	for _, name := range machines {
		pid, ok := cells[name]
		if ok && sentries {
			pid, ok = SentryOf(pid)
		}
		if ok {
			list = append(list, Target{name, pid})
		}
	}
	return list
}

// Fresh returns the machines that are made or being made and that were not
// known before. Standbys are none.
func (d *Daemon) Fresh(before Machines) []string {
	var list []string
	for _, name := range d.Living() {
		isOld := isStandby(name)
		for _, instance := range before.Last {
			isOld = isOld || instance == name
		}
		if !isOld {
			list = append(list, name)
		}
	}
	return list
}

// SentryOf returns the process id of the sentry that a cell has started.
func SentryOf(cell int) (int, bool) {
	up := parents{}
	for pid, args := range processes() {
		if args[0] == "runsc-sandbox" && up.descend(pid, cell) {
			return pid, true
		}
	}
	return 0, false
}

func parentOf(pid int) (int, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}

// Held is what a sandbox holds.
type Held struct {
	// Files are the digests of those in /workspace/w, by name.
	Files map[string]string
	// Memory is what the witness answers: its word and its count. Empty is no
	// witness.
	Memory string
}

// Equal reports whether both are the same.
func (h Held) Equal(o Held) bool {
	return h.Memory == o.Memory && fmt.Sprint(h.Files) == fmt.Sprint(o.Files)
}

// witness holds a word and a count in its memory only. It answers each line of
// its FIFO, "NONCE get" or "NONCE add", with "NONCE WORD COUNT".
const witness = `mkdir -p /workspace/w; mkfifo /tmp/ask /tmp/answer; exec 3<>/tmp/ask 4<>/tmp/answer; n=0; touch /tmp/ready
while read -r nonce what <&3; do [ "$what" = add ] && n=$((n+1)); echo "$nonce $0 $n" >&4; done`

// ask is a line for bash that asks the witness, if there is one. FIFOs that are
// opened both ways are open at once, whether the witness lives or not.
const ask = `[ ! -e /tmp/ready ] || { exec 3<>/tmp/ask 4<>/tmp/answer; me=$RANDOM$RANDOM$RANDOM; echo "$me $what" >&3
while read -r -t 20 -u 4 nonce word && [ "$nonce" != $me ]; do :; done; [ "$nonce" = $me ] && echo "M $word"; }`

// look is a line for bash that shows the digests of the files.
const look = `cd /workspace/w 2>/dev/null && shopt -s dotglob globstar nullglob && files=() && for f in **; do if [ -f "$f" ] && [ ! -L "$f" ]; then files+=("$f"); fi; done
[ ${#files[@]} = 0 ] || sha256sum "${files[@]}"
`

// StartWitness starts a process in a sandbox that holds a word in its memory, and makes
// the directory whose files [Daemon.Look] reads.
func (d *Daemon) StartWitness(ctx context.Context, id, word string) error {
	job, err := d.Client.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"bash", "-c", witness, word}, Background: true}, nil)
	if err != nil {
		return fmt.Errorf("start the witness: %w", err)
	}
	res, err := d.Exec(ctx, id, sandbox.ExecRequest{Shell: "until [ -e /tmp/ready ]; do sleep 0.01; done", TimeoutMS: 20_000})
	if err != nil || res.Job.ExitCode != 0 {
		return fmt.Errorf("the witness %s does not begin: %+v, %w", job.ID, res.Job, err)
	}
	return nil
}

// Count has the witness of a sandbox count one more.
func (d *Daemon) Count(ctx context.Context, id string) error {
	res, err := d.Exec(ctx, id, sandbox.ExecRequest{Shell: "what=add; " + ask})
	if err == nil && res.Job.ExitCode != 0 {
		err = fmt.Errorf("the witness does not answer: exit code %d, %s", res.Job.ExitCode, res.Stderr)
	}
	return err
}

// Look returns what a sandbox holds. A paused one is resumed by it.
func (d *Daemon) Look(ctx context.Context, id string) (Held, error) {
	h := Held{Files: map[string]string{}}
	res, err := d.Exec(ctx, id, sandbox.ExecRequest{Shell: look + "what=get; " + ask})
	if err != nil {
		return h, err
	}
	if res.Job.ExitCode != 0 {
		return h, fmt.Errorf("looking into %s: exit code %d, %s", id, res.Job.ExitCode, res.Stderr)
	}
	for line := range strings.Lines(res.Stdout) {
		a, b, _ := strings.Cut(strings.TrimSpace(line), " ")
		if a == "M" {
			h.Memory = b
			continue
		}
		h.Files[strings.TrimPrefix(strings.TrimSpace(b), "./")] = a
	}
	return h, nil
}
