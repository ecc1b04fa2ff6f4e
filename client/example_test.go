package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// A program runs in a sandbox of its own, and its output file is read back.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{
		URL: "https://cove.example.com",
		Key: client.Secret(os.Getenv("COVE_API_KEY")),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	sb, err := c.Create(ctx, sandbox.CreateRequest{Template: "code-interpreter"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Kill(context.WithoutCancel(ctx), sb.ID)

	program := strings.NewReader("open('out.txt', 'w').write(str(6 * 7))")
	if _, err := c.WriteFile(ctx, sb.ID, sandbox.WriteFileRequest{Path: "main.py"}, program); err != nil {
		log.Fatal(err)
	}
	job, err := c.Exec(ctx, sb.ID, sandbox.ExecRequest{Command: []string{"python3", "main.py"}}, func(ev sandbox.JobEvent) error {
		_, err := os.Stdout.Write(ev.Data)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	file, err := c.ReadFile(ctx, sb.ID, sandbox.ReadFileRequest{Path: "out.txt"})
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	fmt.Println(job.ExitCode, file.Info.Size)
}

// Standard input goes to a command while it runs.
func ExampleClient_OpenTerminal() {
	ctx := context.Background()
	c, err := client.New(client.Config{UnixSocket: "/var/lib/cove/cove.sock"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	t, err := c.OpenTerminal(ctx, "work", sandbox.ExecRequest{Command: []string{"cat"}, OpenStdin: true})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	fmt.Fprintln(t, "hello")
	if err := t.CloseInput(); err != nil {
		log.Fatal(err)
	}
	if _, err := t.Run(func(ev sandbox.JobEvent) error {
		_, err := os.Stdout.Write(ev.Data)
		return err
	}); err != nil {
		log.Fatal(err)
	}
}
