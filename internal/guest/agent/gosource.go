package agent

import (
	"fmt"
	"strings"
	"sync"
)

// stages is the program of the moment of a run that takes several. It
// implements [runner].
type stages struct {
	mu      sync.Mutex
	now     runner // guarded by mu
	stopped bool   // guarded by mu
}

func (s *stages) set(r runner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = r
	if s.stopped {
		r.Kill()
	}
}

// Interrupt implements [runner]. No stage follows.
func (s *stages) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.now != nil {
		s.now.Interrupt()
	}
}

// Insist implements [runner].
func (s *stages) Insist() bool { return false }

// Kill implements [runner].
func (s *stages) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.now != nil {
		s.now.Kill()
	}
}

// goMain completes a piece of Go to a main package, without moving its lines:
// what has no package clause gets one, and what has no function main becomes
// one, but for the imports that it begins with.
func goMain(code string) string {
	if goStartsWith(code, "package") {
		return code
	}
	// The compiler is told where in the user's own lines it is.
	const clause = "package main; /*line main.go:1:1*/"
	if goHasMain(code) {
		return clause + code
	}
	head := goImports(code)
	place := fmt.Sprintf("/*line main.go:%d:%d*/", strings.Count(code[:head], "\n")+1, head-strings.LastIndexByte(code[:head], '\n'))
	end := ""
	if strings.HasSuffix(code[:head], ")") {
		end = "; "
	}
	return clause + code[:head] + end + "func main() { " + place + code[head:] + "\n}\n"
}

// goStartsWith reports whether the first word of code is this one.
func goStartsWith(code, word string) bool {
	rest := code[goSpace(code):]
	return strings.HasPrefix(rest, word) && len(rest) > len(word) && strings.IndexByte(" \t\r\n(\"`/", rest[len(word)]) >= 0
}

func goHasMain(code string) bool {
	for line := range strings.Lines(code) {
		if rest, ok := strings.CutPrefix(line, "func"); ok {
			if name, ok := strings.CutPrefix(strings.TrimSpace(rest), "main"); ok && strings.HasPrefix(strings.TrimSpace(name), "(") {
				return true
			}
		}
	}
	return false
}

// goSpace returns how many bytes of white space and comments code begins with.
func goSpace(code string) int {
	i := 0
	for i < len(code) {
		rest := code[i:]
		switch {
		case strings.IndexByte(" \t\r\n;", rest[0]) >= 0:
			i++
		case strings.HasPrefix(rest, "//"):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				return len(code)
			}
			i += end + 1
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest, "*/")
			if end < 0 {
				return len(code)
			}
			i += end + 2
		default:
			return i
		}
	}
	return i
}

// goImports returns the length of the import declarations that code begins
// with.
func goImports(code string) int {
	end := 0
	for {
		at := end + goSpace(code[end:])
		if !goStartsWith(code[at:], "import") {
			return end
		}
		at += len("import")
		at += goSpace(code[at:])
		stop := "\n"
		if strings.HasPrefix(code[at:], "(") {
			stop = ")"
		}
		n := strings.Index(code[at:], stop)
		if n < 0 {
			return len(code)
		}
		end = at + n + 1
	}
}
