package kernel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// lines is the codec of a shell, which reads commands from standard input and answers with
// fields that end in NUL. Code is in a file, which the shell reads as a whole rather than
// byte by byte, and which error messages refer to by line.
type lines struct {
	k     *Kernel
	env   map[string]string
	files []string // to remove after the run
}

func newLines(k *Kernel) codec { return &lines{k: k, env: k.cfg.Env} }

func (l *lines) run(r *Run) ([]byte, error) {
	l.k.mu.Lock()
	number := l.k.run
	l.k.mu.Unlock()
	cell, err := l.file("cell-"+strconv.Itoa(r.Count), []byte(r.Code))
	if err != nil {
		return nil, err
	}
	input := "/dev/null"
	if r.Given {
		if input, err = l.file("stdin-"+strconv.Itoa(r.Count), r.Stdin); err != nil {
			return nil, err
		}
	}
	var b strings.Builder
	l.defaults(&b, r.Env)
	if len(r.Reseed) >= 4 {
		fmt.Fprintf(&b, "RANDOM=%d\n", binary.BigEndian.Uint32(r.Reseed)>>1)
	}
	names := ""
	for _, name := range slices.Sorted(maps.Keys(r.SetEnv)) {
		if shellName(name) {
			fmt.Fprintf(&b, "__cove_set %s %s\n", name, quote(r.SetEnv[name]))
			names += " " + name
		}
	}
	if r.Home != "" {
		fmt.Fprintf(&b, "cd -- %s\n", quote(r.Home))
	}
	// Between runs, tracing is off, so that "set -x" does not trace the driver.
	run := fmt.Sprintf("{ __cove_trace; } 2>/dev/null; . %s < %s", quote(cell), quote(input))
	if r.Dir != "" {
		run = fmt.Sprintf("if __cove_enter %s; then %s; fi", quote(r.Dir), run)
	}
	// An interrupt ends the line in which it comes. The end is reported again only if one
	// came during the first report.
	end := fmt.Sprintf("{ __cove_s=$?; __cove_quiet; } 2>/dev/null; __cove_end %d \"$__cove_s\"", number)
	fmt.Fprintf(&b, "__cove_begin %d; %s\n%s\n%s\n__cove_unset%s\n", number, run, end, end, names)
	return []byte(b.String()), nil
}

// defaults writes commands for the changes of the default environment.
func (l *lines) defaults(b *strings.Builder, env map[string]string) {
	before := l.env
	l.env = env
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if old, ok := before[name]; (!ok || old != env[name]) && shellName(name) {
			fmt.Fprintf(b, "export %s=%s\n", name, quote(env[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := env[name]; !ok && shellName(name) {
			fmt.Fprintf(b, "unset -v %s\n", name)
		}
	}
}

// file writes data to a file for the shell.
func (l *lines) file(name string, data []byte) (string, error) {
	path := filepath.Join(l.k.cfg.Scratch, name)
	l.files = append(l.files, path)
	_ = os.Remove(path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("write code for the shell: %w", err)
	}
	_, err = f.Write(data)
	if os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(l.k.cfg.UID, l.k.cfg.GID))
	}
	return path, errors.Join(err, f.Close())
}

func (l *lines) tidy() {
	for _, path := range l.files {
		_ = os.Remove(path)
	}
	l.files = nil
}

// read reads "begun" and the run; "done", the run, the exit code, and the directory; or
// "refused" and the same.
func (l *lines) read(r *bufio.Reader) (*message, error) {
	kind, err := field(r)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "ready":
		return &message{Type: kind}, nil
	case "begun", "done", "refused":
	default:
		return nil, fmt.Errorf("%w: an answer of unknown type", errProtocol)
	}
	m := &message{Type: kind}
	var number, exit string
	fields := []*string{&number, &exit, &m.Dir}
	if kind == "begun" {
		fields = fields[:1]
	}
	for _, to := range fields {
		if *to, err = field(r); err != nil {
			return nil, err
		}
	}
	m.Run, err = strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: an answer without a run: %w", errProtocol, err)
	}
	if kind == "begun" {
		return m, nil
	}
	if kind == "refused" {
		m.Why, m.Dir = "it cannot be entered", ""
	}
	code, err := strconv.ParseUint(exit, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: an answer without an exit code: %w", errProtocol, err)
	}
	m.Exit = int(code & 0xff)
	return m, nil
}

var errFieldSize = errors.New("an answer is too long")

// maxField bounds a field, in bytes.
const maxField = 8192

func field(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for b.Len() <= maxField {
		c, err := r.ReadByte()
		if err != nil {
			return "", err
		}
		if c == 0 {
			return b.String(), nil
		}
		b.WriteByte(c)
	}
	return "", errFieldSize
}

// shellName reports whether a shell can have a variable of this name.
func shellName(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// quote makes s one word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
