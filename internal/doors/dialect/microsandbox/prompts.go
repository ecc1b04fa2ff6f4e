package microsandbox

import (
	"cmp"
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Prompts returns the product's two prompts.
func (d *Dialect) Prompts() []dialect.Prompt {
	return []dialect.Prompt{
		prompt("create_python_sandbox", "Python", "microsandbox/python", "python-sandbox"),
		prompt("create_node_sandbox", "Node.js", "microsandbox/node", "node-sandbox"),
	}
}

// prompt makes a prompt for a sandbox for a language. As in the product, its arguments are
// listed as required but have defaults.
func prompt(name, language, image, fallback string) dialect.Prompt {
	description := "Create a " + language + " development sandbox"
	def := &mcp.Prompt{Name: name, Description: description, Arguments: []*mcp.PromptArgument{
		{Name: "sandbox_name", Description: "Name of the sandbox", Required: true},
		{Name: "namespace", Description: "Namespace of the sandbox", Required: true},
	}}
	return dialect.Prompt{Def: def, Get: func(_ context.Context, args map[string]string) (*mcp.GetPromptResult, error) {
		text := fmt.Sprintf("Create a %s sandbox called '%s' in the namespace '%s' with the sandbox_start tool:\n\n"+
			"- image: %s\n- memory: 512 MiB\n- CPUs: 1\n- working directory: /workspace\n",
			language, cmp.Or(args["sandbox_name"], fallback), cmp.Or(args["namespace"], "default"), image)
		return &mcp.GetPromptResult{Description: description, Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: text}},
		}}, nil
	}}
}
