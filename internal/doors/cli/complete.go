package cli

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// completeTime bounds how long a shell waits for names.
	completeTime = 2 * time.Second
	// maxNames bounds the offered names.
	maxNames = 500
)

// lister returns names with their descriptions, separated by a tab.
type lister func(ctx context.Context, c *client.Client) ([]string, error)

// listers has, by the word in a usage line, what lists the names for it. Other words
// are completed with files.
var listers = map[string]lister{
	"SANDBOX": sandboxNames, "PARENT": sandboxNames, "WINNER": sandboxNames, "SUBJECT": sandboxNames,
	"TEMPLATE": templateNames, "SNAPSHOT": snapshotNames, "VOLUME": volumeNames, "SECRET": secretNames, "KEY": keyNames,
}

// nameOf says what NAME means in the commands of a group.
var nameOf = map[string]string{"template": "TEMPLATE", "volume": "VOLUME", "secret": "SECRET", "key": "KEY"}

// flagNames are the flags whose values are names.
var flagNames = map[string]string{"template": "TEMPLATE", "snapshot": "SNAPSHOT", "secret": "SECRET", "volume": "VOLUME"}

// completeNames lets shells complete the names that the commands below cmd take.
func (a *app) completeNames(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.completeNames(sub)
	}
	for flag, word := range flagNames {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return a.names(cmd.Context(), listers[word])
			})
		}
	}
	words := nameWords(cmd)
	if len(words) == 0 || cmd.ValidArgsFunction != nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		word := words[min(len(args), len(words)-1)]
		if len(args) >= len(words) && !strings.HasSuffix(word, "...") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		list := listers[strings.TrimSuffix(word, "...")]
		if list == nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.names(cmd.Context(), list)
	}
}

// nameWords returns the arguments of a usage line, as keys of listers if they are
// names. It is empty if none of them is.
func nameWords(cmd *cobra.Command) []string {
	var words []string
	known := false
	for _, word := range usageWords(cmd.Use) {
		word = strings.Trim(word, "[]")
		plain := strings.TrimSuffix(word, "...")
		if plain == "NAME" && cmd.Name() != "create" && cmd.Parent() != nil {
			plain = nameOf[cmd.Parent().Name()]
		}
		known = known || listers[plain] != nil
		if strings.HasSuffix(word, "...") {
			plain += "..."
		}
		words = append(words, plain)
	}
	if !known {
		return nil
	}
	return words
}

// names asks the running server; it starts none just to complete a word.
func (a *app) names(ctx context.Context, list lister) ([]string, cobra.ShellCompDirective) {
	a.globals.complete(a.Env)
	c, err := a.connectRunning()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer closeQuietly(c)
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	found, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for i := range found {
		found[i] = clean(found[i])
	}
	return found[:min(len(found), maxNames)], cobra.ShellCompDirectiveNoFileComp
}

// namesOf makes a lister from a function that requests a listing and one that returns
// the name and description of an item.
func namesOf[T any](ask func(context.Context, *call) ([]T, error), name func(*T) (name, description string)) lister {
	return func(ctx context.Context, c *client.Client) ([]string, error) {
		items, err := ask(ctx, &call{client: c})
		out := make([]string, 0, len(items))
		for i := range items {
			n, d := name(&items[i])
			out = append(out, n+"\t"+cleanLine(d))
		}
		return out, err
	}
}

var (
	sandboxNames = namesOf(func(ctx context.Context, c *call) ([]sandbox.Sandbox, error) {
		var req sandbox.ListRequest
		return sandbox.All(ctx, paged(&req, &req.Page, c.client.List))
	}, func(s *sandbox.Sandbox) (string, string) {
		return cmp.Or(s.Name, s.ID), string(s.State) + ", " + s.Template
	})
	snapshotNames = namesOf(func(ctx context.Context, c *call) ([]sandbox.Snapshot, error) {
		var req sandbox.ListSnapshotsRequest
		return sandbox.All(ctx, paged(&req, &req.Page, c.client.ListSnapshots))
	}, func(s *sandbox.Snapshot) (string, string) { return s.ID, s.Name })
	templateNames = namesOf(all(sandbox.Service.ListTemplates), func(t *sandbox.Template) (string, string) { return t.Name, t.Description })
	volumeNames   = namesOf(all(sandbox.Service.ListVolumes), func(v *sandbox.Volume) (string, string) { return v.Name, v.ID })
	secretNames   = namesOf(all(sandbox.Service.ListSecrets), func(s *sandbox.Secret) (string, string) { return s.Name, "" })
	keyNames      = namesOf(all(sandbox.Service.ListKeys), func(k *sandbox.Key) (string, string) { return k.ID, k.Name })
)
