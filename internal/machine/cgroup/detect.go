package cgroup

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one mounted hierarchy.
type mount struct {
	dir string
	v2  bool
	// controllers are the controllers of a v1 hierarchy that this package uses.
	controllers []string
	// at is the directory of this process's cgroup in the hierarchy. own is the same, unless
	// this package made that cgroup: then own is the nearest ancestor that it did not make.
	at, own string
}

// hierarchies are the mounted hierarchies and this process's cgroups in them. They are
// read again for each call, since both may change.
type hierarchies struct {
	root   string
	mounts []mount
	// mkdir and rmdir are the system calls. In tests, which imitate the kernel's tree, they
	// also do what the kernel would do.
	mkdir, rmdir func(string) error
}

// parents are the directories in which groups are made: one for each v1 controller, and
// one of v2 with its controllers.
type parents struct {
	v1    map[string]string
	v2    string
	v2has map[string]bool
	// why is the reason why a controller is not available.
	why map[string]string
}

// detect reads which hierarchies are mounted below root, which is "/" outside tests.
func detect(root string) *hierarchies {
	h := &hierarchies{
		root:  root,
		mkdir: func(d string) error { return os.Mkdir(d, 0o755) },
		rmdir: unix.Rmdir,
	}
	own := readOwn(filepath.Join(root, "proc/self/cgroup"))
	info, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return h
	}
	seen := map[string]bool{}
	for sc := bufio.NewScanner(bytes.NewReader(info)); sc.Scan(); {
		m, ok := parseMount(sc.Text(), root, own)
		key := strings.Join(m.controllers, ",")
		if !ok || seen[key] {
			continue
		}
		seen[key] = true
		h.mounts = append(h.mounts, m)
	}
	return h
}

// readOwn returns the paths of the process's cgroups by controller; that of v2 is under
// "".
func readOwn(file string) map[string]string {
	own := map[string]string{}
	data, err := os.ReadFile(file)
	if err != nil {
		return own
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			own[c] = f[2]
		}
	}
	return own
}

// parseMount parses one line of mountinfo. It returns false for mounts that are not
// usable cgroup hierarchies.
func parseMount(line, root string, own map[string]string) (mount, bool) {
	head, tail, ok := strings.Cut(line, " - ")
	hf, tf := strings.Fields(head), strings.Fields(tail)
	if !ok || len(hf) < 6 || len(tf) < 3 {
		return mount{}, false
	}
	top, dir := unescape(hf[3]), filepath.Join(root, unescape(hf[4]))
	m := mount{dir: dir}
	key := ""
	switch tf[0] {
	case "cgroup2":
		m.v2 = true
	case "cgroup":
		for o := range strings.SplitSeq(tf[2], ",") {
			if slices.Contains([]string{memory, cpu, cpuacct, pids, freezer}, o) {
				m.controllers = append(m.controllers, o)
				key = o
			}
		}
		if len(m.controllers) == 0 {
			return mount{}, false
		}
	default:
		return mount{}, false
	}
	m.at = m.dir
	// The mount shows the part of the hierarchy below top; a process outside that part is
	// treated as if it were at the top.
	if p, ok := own[key]; ok && !strings.HasPrefix(p, "/..") {
		rel, err := filepath.Rel(top, p)
		if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			m.at = filepath.Join(m.dir, rel)
		}
	}
	m.own = trimOurs(m.dir, m.at)
	return m, true
}

// trimOurs returns the nearest cgroup, from own upwards, that this package did not make.
func trimOurs(top, own string) string {
	if own != top && path.Base(own) == leafName {
		own = path.Dir(own)
	}
	if up := path.Dir(own); own != top && path.Base(up) == parentName && strings.HasPrefix(up, top+"/") {
		own = path.Dir(up)
	}
	return own
}

// unescape undoes the octal escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// parents returns the directories of a hierarchy in which groups may be made, the best
// first.
func (h *hierarchies) parents(m mount) []string {
	if m.own == m.dir {
		return []string{m.dir}
	}
	return []string{m.own, m.dir}
}

// choose decides where groups are made. It changes nothing.
func (h *hierarchies) choose() parents {
	p := parents{v1: map[string]string{}, v2has: map[string]bool{}, why: map[string]string{}}
	for _, m := range h.mounts {
		if m.v2 {
			h.choose2(m, &p)
			continue
		}
		for _, dir := range h.parents(m) {
			if writable(dir) {
				for _, c := range m.controllers {
					p.v1[c] = dir
				}
				break
			}
			for _, c := range m.controllers {
				p.why[c] = "this user may not create cgroups; run as root, or have a cgroup delegated to this user"
			}
		}
	}
	for _, c := range limiting {
		if p.v1[c] == "" && !p.v2has[c] && p.why[c] == "" {
			p.why[c] = "the kernel offers no " + c + " controller here"
		}
	}
	return p
}

// choose2 is choose for the unified hierarchy.
func (h *hierarchies) choose2(m mount, p *parents) {
	for _, dir := range h.parents(m) {
		has := fields(filepath.Join(dir, "cgroup.controllers"))
		on := fields(filepath.Join(dir, "cgroup.subtree_control"))
		why := ""
		can := writable(dir) && writable(filepath.Join(dir, "cgroup.procs"))
		if !can {
			why = "the cgroup is not delegated to this user; start cove with 'systemd-run --user --scope -p Delegate=yes'"
		}
		blocked := can && dir != realRoot(m) && len(fields(filepath.Join(dir, "cgroup.procs"))) > 0 && !onlyMe(dir)
		got := map[string]bool{}
		for _, c := range limiting {
			switch {
			case !slices.Contains(has, c):
			case !can:
				p.why[c] = why
			case slices.Contains(on, c) || !blocked:
				got[c] = true
			default:
				p.why[c] = "other processes are in the same cgroup; start cove in a cgroup of its own ('systemd-run --scope -p Delegate=yes')"
			}
		}
		// Without controllers, a group can still be used to kill all its processes.
		if can && p.v2 == "" || len(got) > len(p.v2has) {
			p.v2, p.v2has = dir, got
		}
	}
	for c := range p.v2has {
		delete(p.why, c)
	}
}

// realRoot returns m's directory if it is the root of the entire hierarchy, which may
// have both processes and controllers for its children; else "".
func realRoot(m mount) string {
	// Only the root has no cgroup.type file.
	if exists(filepath.Join(m.dir, "cgroup.type")) {
		return ""
	}
	return m.dir
}

// onlyMe reports whether this process is alone in a cgroup.
func onlyMe(dir string) bool {
	procs := fields(filepath.Join(dir, "cgroup.procs"))
	return len(procs) == 1 && procs[0] == fmt.Sprint(os.Getpid())
}

// prepare chooses where groups are made and prepares the parent in v2: it moves this
// process out of the parent and enables controllers for the parent's children.
func (h *hierarchies) prepare() parents {
	p := h.choose()
	if p.v2 == "" || len(p.v2has) == 0 {
		return p
	}
	if onlyMe(p.v2) && !h.isRoot2(p.v2) {
		leaf := filepath.Join(p.v2, leafName)
		_ = h.mkdir(leaf)
		if err := writeFile(filepath.Join(leaf, "cgroup.procs"), fmt.Sprint(os.Getpid())); err != nil {
			_ = h.rmdir(leaf)
		}
	}
	for c := range p.v2has {
		if err := enable(p.v2, c); err != nil {
			delete(p.v2has, c)
			p.why[c] = fmt.Sprintf("the kernel refuses to enable the controller (%v)", cause(err))
		}
	}
	return p
}

func (h *hierarchies) isRoot2(dir string) bool {
	return slices.ContainsFunc(h.mounts, func(m mount) bool { return m.v2 && realRoot(m) == dir })
}

// enableAll enables all controllers for the children of the group that contains all
// sandboxes.
func (h *hierarchies) enableAll(dir string) error {
	for _, c := range fields(filepath.Join(dir, "cgroup.controllers")) {
		if slices.Contains(limiting, c) {
			if err := enable(dir, c); err != nil {
				return fmt.Errorf("enable %s for cgroups: %w", c, err)
			}
		}
	}
	return nil
}

// enable enables a v2 controller for the children of dir.
func enable(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	if slices.Contains(fields(file), controller) {
		return nil
	}
	return writeFile(file, "+"+controller)
}

func (h *hierarchies) support() Support {
	p := h.choose()
	s := Support{Version: h.version()}
	can := func(c string) bool { return p.v1[c] != "" || p.v2has[c] }
	s.Memory, s.CPU, s.PIDs = can(memory), can(cpu), can(pids)
	switch {
	case p.v1[memory] != "":
		s.Swap = exists(filepath.Join(p.v1[memory], "memory.memsw.limit_in_bytes")) || noSwap()
	case p.v2has[memory]:
		s.Swap = true
	}
	s.Missing = h.missingFor(Limits{MemoryBytes: 1, CPUs: 1, PIDs: 1}, p)
	if s.Memory && !s.Swap {
		s.Missing = append(s.Missing, "swap: not accounted; boot with swapaccount=1")
	}
	return s
}

func (h *hierarchies) version() string {
	v1 := slices.ContainsFunc(h.mounts, func(m mount) bool { return !m.v2 })
	v2 := slices.ContainsFunc(h.mounts, func(m mount) bool { return m.v2 })
	switch {
	case v1 && v2:
		return "hybrid"
	case v1:
		return "v1"
	case v2:
		return "v2"
	}
	return "none"
}

// missingFor describes which of the wanted limits cannot be set.
func (h *hierarchies) missingFor(l Limits, p parents) []string {
	var out []string
	add := func(wanted bool, c, what string) {
		if wanted && p.v1[c] == "" && !p.v2has[c] {
			out = append(out, what+": "+p.why[c])
		}
	}
	add(l.MemoryBytes > 0, memory, "memory")
	add(l.CPUs > 0, cpu, "cpu")
	add(l.PIDs > 0, pids, "pids")
	return out
}

// walk calls visit with each directory named cove in a hierarchy, until visit returns
// false.
func (h *hierarchies) walk(m mount, visit func(parent string) bool) {
	left := 20000 // larger than any tree seen, so that the walk always ends
	_ = filepath.WalkDir(m.dir, func(p string, d fs.DirEntry, err error) error {
		left--
		switch {
		case left < 0:
			return filepath.SkipAll
		case err != nil && d != nil && d.IsDir():
			return filepath.SkipDir
		case err != nil || !d.IsDir():
			return nil
		case d.Name() == parentName && p != m.dir:
			if !visit(p) {
				return filepath.SkipAll
			}
			return filepath.SkipDir
		}
		return nil
	})
}

func noSwap() bool {
	data, err := os.ReadFile("/proc/swaps")
	return err == nil && bytes.Count(data, []byte("\n")) <= 1
}
