package agent

import (
	"fmt"
	"strings"
)

// goMain completes Go code to a main package without moving its lines: it adds the
// package clause if there is none, and if there is no function main it puts everything
// after the imports into one.
func goMain(code string) string {
	if goStartsWith(code, "package") {
		return code
	}
	// The comments tell the compiler the position in the user's code.
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

// goStartsWith reports whether word is the first of code.
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

// goImports returns the length of the import declarations at the start of code.
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
