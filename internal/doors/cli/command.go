package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// Commands are declared: a [command] has the texts of its help, its flags, and
// an [action], which is what the command does. Most actions are made by one of
//
//	show    asks for one thing and shows it
//	list    asks for a whole listing and shows it as a table
//	each    does the same to everything that is named, and prints the ids
//	remove  deletes everything that is named, and prints the names
//
// which all take --json. What does not fit is an action of its own. See
// volume.go for a family of commands that is declared in full.

// command declares a command.
type command struct {
	// Use is the usage line. It says how many arguments there may be.
	Use                  string
	Short, Long, Example string
	// Args checks the arguments where the usage line does not say enough.
	Args cobra.PositionalArgs
	// Flags adds the flags. They fill variables beside the declaration, most of
	// them the fields of a request.
	Flags func(*pflag.FlagSet)
	// JSONHelp is the help of --json where the usual text does not fit.
	JSONHelp string
	// Failed is the exit code of errors that have none of their own; the zero
	// value stands for exitError.
	Failed int
	Do     action
}

// action is what a command does.
type action struct {
	run func(ctx context.Context, c *call) error
	// json is whether there is the flag --json.
	json bool
	// here is whether it works on this machine, without a client of the server.
	here bool
}

// call is one run of a command.
type call struct {
	*app
	cmd    *cobra.Command
	args   []string
	client *client.Client // nil for an action that works here
	json   bool
}

// arg is an argument, or "" where there are fewer.
func (c *call) arg(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

// misuse is the error of a command line that makes no sense.
func (c *call) misuse(format string, args ...any) error {
	return usageError(c.cmd, fmt.Errorf(format, args...))
}

// aliases are further names of verbs that most nouns have.
var aliases = map[string]string{"ls": "list", "get": "inspect", "rm": "delete"}

// make makes a declared command.
func (a *app) make(d command) *cobra.Command {
	cmd := &cobra.Command{Use: d.Use, Short: d.Short, Long: d.Long, Example: d.Example, Args: d.Args}
	if alias := aliases[cmd.Name()]; alias != "" {
		cmd.Aliases = []string{alias}
	}
	if cmd.Args == nil {
		cmd.Args = usageArgs(d.Use)
	}
	if d.Flags != nil {
		d.Flags(cmd.Flags())
	}
	var out jsonOption
	if d.Do.json {
		out.AddFlags(cmd.Flags())
		if d.JSONHelp != "" {
			cmd.Flags().Lookup("json").Usage = d.JSONHelp
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := a.run(cmd.Context(), d.Do, &call{app: a, cmd: cmd, args: args, json: out.JSON})
		return withCode(err, d.Failed)
	}
	return cmd
}

// run runs an action, with a client if it needs one.
func (a *app) run(ctx context.Context, do action, c *call) error {
	if !do.here {
		var err error
		if c.client, err = a.connect(); err != nil {
			return err
		}
		defer closeQuietly(c.client)
	}
	return do.run(ctx, c)
}

// withCode gives an error an exit code, unless it is 0 or the error has one.
func withCode(err error, code int) error {
	_, coded := errors.AsType[*exit](err)
	_, misused := errors.AsType[*usage](err)
	if err == nil || code == 0 || coded || misused {
		return err
	}
	return &exit{code: code, err: err}
}

// usageArgs makes the check of the number of arguments that a usage line asks
// for: "[X]" may be missing, and "X..." may be repeated.
func usageArgs(use string) cobra.PositionalArgs {
	least, most, depth := 0, 0, 0
	for _, word := range usageWords(use) {
		rest, opens := strings.CutPrefix(word, "[") // "[ENV=]NAME" is not optional
		optional := depth > 0 || opens && (strings.HasSuffix(rest, "]") || !strings.Contains(rest, "]"))
		depth += strings.Count(word, "[") - strings.Count(word, "]")
		if !optional {
			least++
		}
		if strings.Contains(word, "...") {
			return argsBetween(least, -1)
		}
		most++
	}
	return argsBetween(least, most)
}

// usageWords are the words of a usage line that stand for arguments.
func usageWords(use string) []string {
	var words []string
	for _, word := range strings.Fields(use)[1:] {
		if word != "[flags]" && word != "[--]" {
			words = append(words, word)
		}
	}
	return words
}

// show asks for one thing and shows it.
func show[T any](view func(*call, *T) error, ask func(context.Context, *call) (*T, error)) action {
	return action{json: true, run: func(ctx context.Context, c *call) error {
		v, err := ask(ctx, c)
		return shown(c, view, v, err)
	}}
}

// shown shows a thing that was asked for, or the error of that.
func shown[T any](c *call, view func(*call, *T) error, v *T, err error) error {
	switch {
	case err != nil:
		return err
	case c.json:
		return c.printJSON(v)
	}
	return view(c, v)
}

// list asks for a whole listing and shows it.
func list[T any](view func(*call, []T) error, ask func(context.Context, *call) ([]T, error)) action {
	return action{json: true, run: func(ctx context.Context, c *call) error {
		items, err := ask(ctx, c)
		switch {
		case err != nil:
			return err
		case c.json:
			return c.printJSON(itemList[T]{items})
		}
		return view(c, items)
	}}
}

// each does a thing to all that the arguments name, and prints the ids of what
// was done. All are tried; the action fails with the first error.
func each[T any](id func(*T) string, do func(ctx context.Context, c *call, name string) (*T, error)) action {
	return action{json: true, run: func(ctx context.Context, c *call) error {
		items := []T{}
		var first error
		for _, name := range c.args {
			v, err := do(ctx, c, name)
			switch {
			case err == nil:
				items = append(items, *v)
			case first == nil:
				first = err
			default:
				c.say("%s", explain(err))
			}
		}
		var err error
		if c.json {
			err = c.printJSON(itemList[T]{items})
		} else {
			err = ids(id)(c, items)
		}
		if err != nil {
			return err
		}
		return first
	}}
}

// remove deletes all that the arguments name, as each does.
func remove(verb func(sandbox.Service, context.Context, string) error) action {
	type named struct {
		Name string `json:"name"`
	}
	return each(func(n *named) string { return n.Name }, func(ctx context.Context, c *call, name string) (*named, error) {
		return &named{name}, verb(c.client, ctx, name)
	})
}

// byName asks a verb of the service for what the first argument names.
func byName[T any](verb func(sandbox.Service, context.Context, string) (*T, error)) func(context.Context, *call) (*T, error) {
	return func(ctx context.Context, c *call) (*T, error) { return verb(c.client, ctx, c.args[0]) }
}

// all asks a verb of the service for a whole listing.
func all[T any](verb func(sandbox.Service, context.Context, sandbox.Page) (*sandbox.List[T], error)) func(context.Context, *call) ([]T, error) {
	return func(ctx context.Context, c *call) ([]T, error) {
		return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) { return verb(c.client, ctx, p) })
	}
}

// allOf asks a verb of the service for all that the sandbox has which is the
// first argument.
func allOf[T any](verb func(sandbox.Service, context.Context, string, sandbox.Page) (*sandbox.List[T], error)) func(context.Context, *call) ([]T, error) {
	return func(ctx context.Context, c *call) ([]T, error) {
		return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) {
			return verb(c.client, ctx, c.arg(0), p)
		})
	}
}

// table is the view of a listing: its headings, and the cells of an item, which
// are shown by text.
func table[T any](headings []string, row func(*T) []any) func(*call, []T) error {
	return func(c *call, items []T) error {
		return c.printTable(headings, cells(items, row))
	}
}

// cells are the rows of a table.
func cells[T any](items []T, row func(*T) []any) [][]string {
	rows := make([][]string, 0, len(items))
	for i := range items {
		rows = append(rows, texts(row(&items[i])))
	}
	return rows
}

// ids is the view of a listing that has one id a line.
func ids[T any](id func(*T) string) func(*call, []T) error {
	return func(c *call, items []T) error {
		var b strings.Builder
		for i := range items {
			b.WriteString(id(&items[i]) + "\n")
		}
		return c.print(b.String())
	}
}

// quietly is ids where --quiet was given, which is true by the time of the call,
// and else the other view.
func quietly[T any](quiet *bool, id func(*T) string, otherwise func(*call, []T) error) func(*call, []T) error {
	return func(c *call, items []T) error {
		if *quiet {
			return ids(id)(c, items)
		}
		return otherwise(c, items)
	}
}

// details is the view of a thing that has its fields, one a line: names and
// values in turn.
func details[T any](fields func(*T) []any) func(*call, *T) error {
	return func(c *call, v *T) error { return c.fields(fields(v)...) }
}

// only is the view of a thing that is one text.
func only[T any](text func(*T) string) func(*call, *T) error {
	return func(c *call, v *T) error { return c.print(text(v) + "\n") }
}

// texts shows values: lists with blanks between, all else as fmt does.
func texts(values []any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		if list, ok := v.([]string); ok {
			out[i] = strings.Join(list, " ")
		} else {
			out[i] = fmt.Sprint(v)
		}
	}
	return out
}

// itemsOf returns what a listing of one part has.
func itemsOf[T any](l *sandbox.List[T], err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// paged makes a lister of a verb whose request has the page among its fields.
func paged[R, T any](req *R, page *sandbox.Page, verb func(context.Context, R) (*sandbox.List[T], error)) sandbox.Lister[T] {
	return func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) {
		*page = p
		return verb(ctx, *req)
	}
}
