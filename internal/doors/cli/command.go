package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// Commands are declared: a [command] has its help texts, its flags, and the
// [action] that it runs. Most actions are made by one of
//
//	show    requests one item and shows it
//	list    requests a whole listing and shows it as a table
//	each    calls a verb for each argument, and prints the ids
//	remove  deletes what each argument names, and prints the names
//
// which all take --json. Other commands have an action of their own. volume.go
// declares a complete family of commands.

type command struct {
	// Use is the usage line, which also gives the number of arguments.
	Use                  string
	Short, Long, Example string
	// Args checks the arguments; nil checks their number against Use.
	Args cobra.PositionalArgs
	// Flags adds the flags, which set variables next to the declaration, mostly
	// fields of a request.
	Flags func(*pflag.FlagSet)
	// JSONHelp is the help of --json; empty is jsonHelp.
	JSONHelp string
	// Failed is the exit code of errors that have none of their own; 0 is
	// exitError.
	Failed int
	Do     action
}

type action struct {
	run  func(ctx context.Context, c *call) error
	json bool // there is a flag --json
	here bool // runs on this machine, without a client of the server
}

// call is one run of a command.
type call struct {
	*app
	cmd    *cobra.Command
	args   []string
	client *client.Client // nil for an action that runs here
	json   bool
}

// arg returns an argument, or "" if there are fewer.
func (c *call) arg(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

// misuse returns the error of a wrong command line.
func (c *call) misuse(format string, args ...any) error {
	return usageError(c.cmd, fmt.Errorf(format, args...))
}

// aliases are other names of verbs that most nouns have.
var aliases = map[string]string{"ls": "list", "get": "inspect", "rm": "delete"}

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
	asJSON := false
	if d.Do.json {
		cmd.Flags().BoolVar(&asJSON, "json", false, cmp.Or(d.JSONHelp, jsonHelp))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := a.run(cmd.Context(), d.Do, &call{app: a, cmd: cmd, args: args, json: asJSON})
		return withCode(err, d.Failed)
	}
	return cmd
}

// run runs an action, with a client unless it runs here.
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

// usageArgs returns a check of the number of arguments against a usage line:
// "[X]" is optional, and "X..." may be repeated.
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

// usageWords returns the words of a usage line that stand for arguments.
func usageWords(use string) []string {
	var words []string
	for _, word := range strings.Fields(use)[1:] {
		if word != "[flags]" && word != "[--]" {
			words = append(words, word)
		}
	}
	return words
}

// show requests one item and shows it.
func show[T any](view func(*call, *T) error, ask func(context.Context, *call) (*T, error)) action {
	return action{json: true, run: func(ctx context.Context, c *call) error {
		v, err := ask(ctx, c)
		return shown(c, view, v, err)
	}}
}

// shown shows the result of a request, or returns its error.
func shown[T any](c *call, view func(*call, *T) error, v *T, err error) error {
	switch {
	case err != nil:
		return err
	case c.json:
		return c.printJSON(v)
	}
	return view(c, v)
}

// list requests a whole listing and shows it.
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

// each calls a verb for each argument and prints the ids of the results. A failure
// does not stop it; the action fails with the first error.
func each[T any](id func(*T) string, verb func(sandbox.Service, context.Context, string) (*T, error)) action {
	return action{json: true, run: func(ctx context.Context, c *call) error {
		items := []T{}
		var first error
		for _, name := range c.args {
			v, err := verb(c.client, ctx, name)
			switch {
			case err == nil:
				items = append(items, *v)
			case first == nil:
				first = err
			default:
				c.say("%s", clean(err.Error()))
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

// remove deletes what the arguments name, as each does.
func remove(verb func(sandbox.Service, context.Context, string) error) action {
	type named struct {
		Name string `json:"name"`
	}
	return each(func(n *named) string { return n.Name }, func(s sandbox.Service, ctx context.Context, name string) (*named, error) {
		return &named{name}, verb(s, ctx, name)
	})
}

// byName calls a verb of the service with the first argument.
func byName[T any](verb func(sandbox.Service, context.Context, string) (*T, error)) func(context.Context, *call) (*T, error) {
	return func(ctx context.Context, c *call) (*T, error) { return verb(c.client, ctx, c.args[0]) }
}

// all requests all pages of a listing.
func all[T any](verb func(sandbox.Service, context.Context, sandbox.Page) (*sandbox.List[T], error)) func(context.Context, *call) ([]T, error) {
	return func(ctx context.Context, c *call) ([]T, error) {
		return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) { return verb(c.client, ctx, p) })
	}
}

// allOf requests all pages of a listing of the sandbox that the first argument
// names.
func allOf[T any](verb func(sandbox.Service, context.Context, string, sandbox.Page) (*sandbox.List[T], error)) func(context.Context, *call) ([]T, error) {
	return func(ctx context.Context, c *call) ([]T, error) {
		return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) {
			return verb(c.client, ctx, c.arg(0), p)
		})
	}
}

// table is a view of a listing as a table, with a row of cells for each item.
func table[T any](headings []string, row func(*T) []any) func(*call, []T) error {
	return func(c *call, items []T) error {
		return c.printTable(headings, cells(items, row))
	}
}

func cells[T any](items []T, row func(*T) []any) [][]string {
	rows := make([][]string, 0, len(items))
	for i := range items {
		rows = append(rows, texts(row(&items[i])))
	}
	return rows
}

// ids is a view of a listing with one id a line.
func ids[T any](id func(*T) string) func(*call, []T) error {
	return func(c *call, items []T) error {
		var b strings.Builder
		for i := range items {
			b.WriteString(id(&items[i]) + "\n")
		}
		return c.print(b.String())
	}
}

// quietly is ids if --quiet was given, and otherwise the other view.
func quietly[T any](quiet *bool, id func(*T) string, otherwise func(*call, []T) error) func(*call, []T) error {
	return func(c *call, items []T) error {
		if *quiet {
			return ids(id)(c, items)
		}
		return otherwise(c, items)
	}
}

// details is a view of an item with one field a line; fields alternates between
// names and values.
func details[T any](fields func(*T) []any) func(*call, *T) error {
	return func(c *call, v *T) error { return c.fields(fields(v)...) }
}

// only is a view of an item that prints one text.
func only[T any](text func(*T) string) func(*call, *T) error {
	return func(c *call, v *T) error { return c.print(text(v) + "\n") }
}

// texts formats values: lists separated by spaces, anything else as fmt does.
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

// itemsOf returns the items of a listing that has a single page.
func itemsOf[T any](l *sandbox.List[T], err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// paged makes a lister from a verb whose request has the page as a field.
func paged[R, T any](req *R, page *sandbox.Page, verb func(context.Context, R) (*sandbox.List[T], error)) sandbox.Lister[T] {
	return func(ctx context.Context, p sandbox.Page) (*sandbox.List[T], error) {
		*page = p
		return verb(ctx, *req)
	}
}
