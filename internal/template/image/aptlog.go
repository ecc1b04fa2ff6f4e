package image

import (
	"bufio"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// aptLog derives the progress of a build from the output of mmdebstrap, apt and
// dpkg.
type aptLog struct {
	report reporter

	mu       sync.Mutex
	phase    int         // under mu: index into phases, -1 before the first
	step     string      // under mu
	fraction float64     // under mu
	apt      AptProgress // under mu: in this phase
	expected int64       // under mu: bytes on the disk, as apt estimates
	shown    int64       // under mu: bytes unpacked at the last report
	lines    int         // under mu
	failed   []string    // under mu: the last messages of failure
	full     bool        // under mu: something did not fit on the disk
}

// phases are the phases of a build: the line that announces each, and the fraction of the
// build that is done when it starts.
var phases = []struct {
	prefix, step string
	from         float64
}{
	{"running apt-get update", "reading package lists", 0.01},
	{"downloading packages with apt", "downloading essential packages", 0.05},
	{"extracting archives", "extracting essential packages", 0.12},
	{"installing essential packages", "installing essential packages", 0.15},
	{"installing remaining packages inside the chroot", "installing packages", 0.22},
	{"cleaning package lists", "cleaning up", 0.80},
	{"creating tarball", "unpacking", 0.82},
	{"done", "unpacked", 0.95},
}

const (
	maxLogLines = 20_000
	maxLogLine  = 400
)

var (
	newlyInstalled = lazyregexp.New(`^\d+ upgraded, (\d+) newly installed`)
	diskSpace      = lazyregexp.New(`^After this operation, ([0-9.,]+) ([kMG]?B) of additional disk space`)
)

// noSpace matches the messages of tar, dpkg and apt for a full disk.
var noSpace = lazyregexp.New(`No space left on device|Disk quota exceeded|You don't have enough free space in `)

func newAptLog(report reporter) *aptLog {
	return &aptLog{report: report, phase: -1, step: "starting"}
}

// follow reads messages until r ends.
func (l *aptLog) follow(r io.Reader) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			l.line(string(line))
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

// line handles one message.
func (l *aptLog) line(s string) {
	s = tidy(s)
	if s == "" {
		return
	}
	l.mu.Lock()
	l.lines++
	quiet := l.lines > maxLogLines
	// Any of the programs may be the first to run out of space.
	l.full = l.full || noSpace.MatchString(s)
	switch {
	case strings.HasPrefix(s, "I: "):
		l.enter(s[3:])
	case strings.HasPrefix(s, "E: "):
		if l.failed = append(l.failed, s[3:]); len(l.failed) > 8 {
			l.failed = l.failed[1:]
		}
	default:
		l.count(s)
	}
	step, fraction := l.step, l.fraction
	l.mu.Unlock()
	if !quiet {
		l.report(step, fraction, s)
	}
}

// enter starts a phase.
//
// Preconditions: l.mu is held.
func (l *aptLog) enter(s string) {
	for i, p := range phases {
		if i > l.phase && strings.HasPrefix(s, p.prefix) {
			l.phase, l.step, l.fraction = i, p.step, p.from
			l.apt = AptProgress{downloads: p.step == "downloading essential packages"}
			return
		}
	}
}

// count advances the fraction within a phase.
//
// Preconditions: l.mu is held.
func (l *aptLog) count(s string) {
	if m := diskSpace.FindStringSubmatch(s); m != nil {
		l.expected += parseSize(m[1], m[2])
	}
	if l.phase < 0 || l.phase+1 >= len(phases) {
		return
	}
	from, to := phases[l.phase].from, phases[l.phase+1].from
	l.fraction = max(l.fraction, from+(to-from)*l.apt.line(s))
}

// AptProgress derives the progress of an installation from the output of apt and
// dpkg. The zero value is ready to use, by one goroutine at a time.
type AptProgress struct {
	packages, seen int
	// downloads is set if packages are only downloaded.
	downloads bool
	rest      string // the beginning of an incomplete line
	fraction  float64
}

// Write handles a piece of the output and returns the fraction that is done.
func (a *AptProgress) Write(text string) float64 {
	lines := strings.Split(a.rest+text, "\n")
	for _, s := range lines[:len(lines)-1] {
		a.line(s)
	}
	a.rest = lines[len(lines)-1]
	a.rest = a.rest[:min(len(a.rest), maxLogLine)]
	return a.fraction
}

// line handles one line. Each package is fetched, unpacked and set up.
func (a *AptProgress) line(s string) float64 {
	if m := newlyInstalled.FindStringSubmatch(s); m != nil {
		a.packages, _ = strconv.Atoi(m[1])
		return a.fraction
	}
	switch {
	case a.packages <= 0:
		return a.fraction
	case strings.HasPrefix(s, "Get:"), strings.HasPrefix(s, "Unpacking "), strings.HasPrefix(s, "Setting up "):
	default:
		return a.fraction
	}
	a.seen++
	steps := 3 * a.packages
	if a.downloads {
		steps = a.packages
	}
	a.fraction = min(1, float64(a.seen)/float64(steps))
	return a.fraction
}

// unpacked reports that n bytes of the finished system have been unpacked.
func (l *aptLog) unpacked(n int64) {
	l.mu.Lock()
	if n-l.shown < 4<<20 || l.phase < 0 || phases[l.phase].step != "unpacking" {
		l.mu.Unlock()
		return
	}
	l.shown = n
	if l.expected > 0 {
		l.fraction = 0.82 + 0.13*min(1, float64(n)/float64(l.expected))
	}
	step, fraction := l.step, l.fraction
	l.mu.Unlock()
	l.report(step, fraction, "")
}

// explain returns the error for the caller of a failed run.
func (l *aptLog) explain(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.failed {
		if name, ok := strings.CutPrefix(f, "Unable to locate package "); ok {
			return sandbox.Errorf(sandbox.CodeInvalid, "Debian %s has no package %s; check the name", suite, name)
		}
	}
	if l.full {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the disk is full; free space where Cove keeps its state and in its temporary directory, and build again")
	}
	why := "it printed no reason"
	for i, f := range l.failed {
		if f == "mmdebstrap failed to run" && i > 0 {
			break // a consequence of the earlier messages
		}
		// The first message is the cause; "apt-get failed" and the like follow from it.
		if why = f; !strings.Contains(f, "failed: ") {
			break
		}
	}
	if e, ok := err.(*exec.ExitError); ok && why == "it printed no reason" {
		why = e.String()
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "mmdebstrap could not build the template: "+why+"; see the build's log")
}

// tidy returns a line of output as one short line without control characters.
func tidy(s string) string {
	if i := strings.LastIndexByte(strings.TrimRight(s, "\r\n"), '\r'); i >= 0 {
		s = s[i+1:] // the part that stays visible on a terminal
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "?"))
	s = strings.TrimSpace(s)
	if len(s) > maxLogLine {
		s = strings.ToValidUTF8(s[:maxLogLine], "") + "…"
	}
	return s
}

// parseSize reads apt's "1,234 kB".
func parseSize(number, unit string) int64 {
	f, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil || f < 0 || f > 1e9 {
		return 0
	}
	switch unit {
	case "kB":
		f *= 1e3
	case "MB":
		f *= 1e6
	case "GB":
		f *= 1e9
	}
	return int64(f)
}
