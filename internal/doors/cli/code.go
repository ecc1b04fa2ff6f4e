package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type codeOptions struct {
	sandbox.RunIsolatedRequest
	Isolated  bool
	Input     string
	OutputDir string
}

// AddFlags adds the options' flags.
func (o *codeOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVarP((*string)(&o.Language), "language", "l", "", "Language: python, javascript, typescript, bash or go (default from the file name, or python)")
	f.StringVarP(&o.Code, "code", "c", "", "Run this code instead of a file")
	f.StringVar(&o.Context, "context", "", "Interpreter to run the code in; it keeps its state (default \"default\")")
	f.BoolVar(&o.Fresh, "fresh", false, "Run the code in a new interpreter that ends afterwards")
	f.BoolVar(&o.Isolated, "isolated", false, "Run the code in a new sandbox that is removed afterwards")
	f.StringVarP(&o.Template, "template", "T", "", "Template of the sandbox (with --isolated)")
	f.Var(millisecondsFlag(&o.TimeoutMS), "timeout", "Interrupt the code after this time, with exit code 124 (default 1m)")
	f.VarP(pairsFlag(&o.Env), "env", "e", "Environment variable for this code (repeatable)")
	f.StringVarP(&o.User, "user", "u", "", "User to run a new interpreter as")
	f.StringVarP(&o.WorkDir, "workdir", "w", "", "Working directory for this code")
	f.StringVar(&o.Input, "input", "", "Text for input() to read")
	f.StringVarP(&o.OutputDir, "output-dir", "o", "", "Save images, tables and other outputs to this directory")
}

func (a *app) codeCommand() *cobra.Command {
	var opts codeOptions
	return a.make(command{
		Use: "code [flags] {SANDBOX | --isolated} [FILE]", Short: "Run code in an interpreter that keeps its state",
		Long: "Run code in an interpreter that keeps variables between runs, like a notebook. The code comes from\n" +
			"-c, from FILE, or from standard input (also written as \"-\"). On a terminal, without code, cove reads\n" +
			"and runs one line after another until ^D.\n\n" +
			"Output appears as it is written: the first MiB of standard output and of standard error, then the\n" +
			"value of the last expression. The exit code is 0 on success, 1 after an error in the code, 124 after\n" +
			"a timeout, and 125 if Cove failed.",
		Example: "  cove code work -c 'x = 6'\n" +
			"  cove code work -c 'x * 7'\n" +
			"  cove code work -o plots analysis.py\n" +
			"  cove code work -l bash -c 'cd /tmp && pwd'\n" +
			"  cove code --isolated -c 'print(6 * 7)'",
		Args:     cobra.ArbitraryArgs,
		Flags:    opts.AddFlags,
		JSONHelp: "Print the result as JSON when the code has ended",
		Failed:   exitFailed,
		Do:       action{json: true, run: func(ctx context.Context, c *call) error { return c.runCode(ctx, &opts) }},
	})
}

// codeArgs returns which argument is the sandbox and which is the file.
func codeArgs(opts *codeOptions, args []string) (name, file string, err error) {
	if !opts.Isolated {
		if len(args) == 0 {
			return "", "", errors.New("code: missing sandbox; name one or use --isolated")
		}
		name, args = args[0], args[1:]
	}
	switch {
	case len(args) > 1:
		return "", "", fmt.Errorf("code: unexpected argument %q", args[1])
	case len(args) == 1 && opts.Code != "":
		return "", "", errors.New("code: -c and a file are both given; use one of them")
	case len(args) == 1:
		file = args[0]
	}
	switch {
	case opts.Isolated && opts.Context != "":
		return "", "", errors.New("code: --context needs a sandbox that stays; leave it out with --isolated")
	case !opts.Isolated && opts.Template != "":
		return "", "", errors.New("code: --template works only with --isolated")
	}
	return name, file, nil
}

var languagesBySuffix = map[string]sandbox.Language{
	".py": sandbox.Python, ".js": sandbox.JavaScript, ".mjs": sandbox.JavaScript, ".cjs": sandbox.JavaScript,
	".ts": sandbox.TypeScript, ".sh": sandbox.Bash, ".bash": sandbox.Bash, ".go": sandbox.Go,
}

// languageOf returns the language of a file by its name; the default is Python.
func languageOf(file string) sandbox.Language {
	return cmp.Or(languagesBySuffix[strings.ToLower(filepath.Ext(file))], sandbox.Python)
}

func (c *call) runCode(ctx context.Context, opts *codeOptions) error {
	name, file, err := codeArgs(opts, c.args)
	if err != nil {
		return c.misuse("%w", err)
	}
	opts.Language = cmp.Or(opts.Language, languageOf(file))
	if c.cmd.Flags().Changed("input") {
		opts.Stdin = []byte(opts.Input)
	}
	if opts.Code == "" && file == "" && isTerminal(c.Stdin) && isTerminal(c.Stdout) && !opts.Isolated && !c.json {
		return c.codeLines(ctx, name, opts)
	}
	if opts.Code == "" {
		if opts.Code, err = c.readCode(file); err != nil {
			return err
		}
	}
	return c.codeOnce(ctx, name, opts)
}

// readCode reads a file, or standard input.
func (a *app) readCode(file string) (string, error) {
	in := a.Stdin
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, sandbox.MaxCodeBytes+1))
	if err != nil {
		return "", fmt.Errorf("read the code: %w", err)
	}
	return string(data), nil
}

// codeOnce runs code and returns nil, or an [exit] with the code for cove.
func (c *call) codeOnce(ctx context.Context, name string, opts *codeOptions) error {
	show := &codeShow{a: c.app, dir: opts.OutputDir}
	sink := show.event
	if c.json {
		sink = nil
	}
	var result *sandbox.CodeResult
	var err error
	if opts.Isolated {
		result, err = c.client.RunIsolated(ctx, opts.RunIsolatedRequest, sink)
	} else {
		result, err = c.client.RunCode(ctx, name, opts.RunCodeRequest, sink)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return interrupted(ctx)
	case err != nil:
		return &exit{code: exitFailed, err: err}
	}
	if c.json {
		if err := c.printJSON(result); err != nil {
			return err
		}
	} else {
		show.missing(result)
	}
	return c.codeEnd(result)
}

func (c *call) codeEnd(result *sandbox.CodeResult) error {
	if e := result.Error; e != nil && !c.json {
		text := e.Traceback
		if text == "" {
			text = e.Name + ": " + e.Message
		}
		fmt.Fprintln(c.Stderr, clean(strings.TrimRight(text, "\n")))
	}
	if result.Restarted {
		c.say("the interpreter was restarted and lost its state: %s", clean(result.Reason))
	}
	switch {
	case result.TimedOut:
		return &exit{code: exitTimeout, err: errors.New("the code timed out and was interrupted; allow more time with --timeout")}
	case result.ExitCode != 0:
		return &exit{code: result.ExitCode}
	}
	return nil
}

// codeShow shows the output of code, and saves rich outputs in a directory.
type codeShow struct {
	a   *app
	dir string
	n   int // outputs so far

	stdout, stderr int64 // bytes that came
}

func (s *codeShow) event(e sandbox.CodeEvent) error {
	switch {
	case e.Output != nil:
		return s.output(e.Output)
	case len(e.Data) == 0:
		return nil
	case e.Stream == sandbox.Stderr:
		n, err := s.a.Stderr.Write(e.Data)
		s.stderr += int64(n)
		return err
	}
	n, err := s.a.Stdout.Write(e.Data)
	s.stdout += int64(n)
	return err
}

// missing prints how much of the streams was not kept and therefore not received.
func (s *codeShow) missing(r *sandbox.CodeResult) {
	for _, stream := range []struct {
		name          string
		written, came int64
	}{{"output", r.StdoutBytes, s.stdout}, {"error", r.StderrBytes, s.stderr}} {
		if n := stream.written - stream.came; n > 0 {
			s.a.say("%d bytes of standard %s are left out after the first %d; write large output to a file", n, stream.name, stream.came)
		}
	}
}

func (s *codeShow) output(out *sandbox.CodeOutput) error {
	s.n++
	types := slices.Sorted(maps.Keys(out.Data))
	var unseen []string
	for _, mime := range types {
		data, err := outputBytes(mime, out.Data[mime])
		if err != nil {
			continue
		}
		switch {
		case mime == "text/plain" && (out.Result || len(types) == 1):
			if err := s.a.print(strings.TrimRight(clean(string(data)), "\n") + "\n"); err != nil {
				return err
			}
		case s.dir != "":
			if err := s.save(mime, data); err != nil {
				return err
			}
		case mime != "text/plain":
			unseen = append(unseen, fmt.Sprintf("%s (%s)", mime, bytesText(int64(len(data)))))
		}
	}
	for _, mime := range slices.Sorted(maps.Keys(out.Files)) {
		s.a.say("%s is too large to copy here; it is in the sandbox at %s", mime, cleanLine(out.Files[mime]))
	}
	if len(unseen) > 0 {
		s.a.say("not shown: %s; save it with --output-dir", strings.Join(unseen, ", "))
	}
	return nil
}

// outputBytes decodes the data of one MIME type of an output.
func outputBytes(mime string, raw json.RawMessage) ([]byte, error) {
	if sandbox.JSONType(mime) {
		return raw, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	if sandbox.TextType(mime) {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(text)
}

var suffixes = map[string]string{
	"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg", "text/html": ".html",
	"text/plain": ".txt", "text/markdown": ".md", "text/latex": ".tex", "application/json": ".json", "application/pdf": ".pdf",
	"application/javascript": ".js", "application/vnd.plotly.v1+json": ".plotly.json",
}

// save writes an output to a new file and prints its name.
func (s *codeShow) save(mime string, data []byte) error {
	suffix, ok := suffixes[mime]
	switch {
	case ok:
	case sandbox.JSONType(mime):
		suffix = ".json"
	default:
		suffix = ".bin"
	}
	if err := os.MkdirAll(s.dir, 0o777); err != nil {
		return err
	}
	for n := s.n; ; n++ {
		path := filepath.Join(s.dir, fmt.Sprintf("output-%d%s", n, suffix))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, os.ErrExist) && n < s.n+10_000 {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err = errors.Join(err, f.Close()); err == nil {
			s.a.say("saved %s (%s)", path, bytesText(int64(len(data))))
		}
		return err
	}
}
