package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/cove-sh/cove/sandbox"
)

// codeLines reads code from a terminal and runs it piece by piece until ^D.
func (c *call) codeLines(ctx context.Context, name string, opts *codeOptions) error {
	lang, err := sandbox.ParseLanguage(string(opts.Language))
	if err != nil {
		return err
	}
	console, ok := c.Stdin.(*os.File)
	if !ok {
		return errors.New("standard input is not a terminal; pass the code with -c")
	}
	c.say("%s; press ^D to exit, enter an empty line to run a block", lang)
	lines := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{console, c.Stdout}, "")
	for {
		code, err := readBlock(console, lines, lang)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(code) == "" {
			continue
		}
		opts.Code = code
		if err := c.codeOnce(ctx, name, opts); err != nil {
			e, ok := errors.AsType[*exit](err)
			if ctx.Err() != nil || !ok || e.code == exitFailed {
				return err
			}
		}
	}
}

// readBlock reads one piece of code: a line, or a block up to an empty line. The
// terminal is in raw mode only while it reads.
func readBlock(console *os.File, lines *term.Terminal, lang sandbox.Language) (string, error) {
	restore, err := rawMode(console)
	if err != nil {
		return "", err
	}
	defer restore()
	var block []string
	for {
		lines.SetPrompt(">>> ")
		if len(block) > 0 {
			lines.SetPrompt("... ")
		}
		line, err := lines.ReadLine()
		if err != nil {
			return "", err
		}
		block = append(block, line)
		if code := strings.Join(block, "\n"); !goesOn(lang, code, line) {
			return code + "\n", nil
		}
	}
}

// goesOn guesses whether a piece of code continues after its last line.
func goesOn(lang sandbox.Language, code, last string) bool {
	open := 0
	for _, r := range code {
		switch r {
		case '(', '[', '{':
			open++
		case ')', ']', '}':
			open--
		}
	}
	if open > 0 || strings.HasSuffix(last, `\`) {
		return strings.TrimSpace(last) != "" || open > 0 && !strings.HasSuffix(code, "\n\n")
	}
	if lang != sandbox.Python {
		return false
	}
	if strings.TrimSpace(last) == "" {
		return false
	}
	first, _, several := strings.Cut(code, "\n")
	begins := strings.HasSuffix(strings.TrimSpace(first), ":") || strings.HasPrefix(first, "@") || strings.HasPrefix(first, "%%")
	return begins && (several || last == first)
}
