package kernel

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// TestInterruptBeforeCode interrupts code before the interpreter has begun it. The code
// ends, later code is not interrupted, and the interpreter keeps its state.
func TestInterruptBeforeCode(t *testing.T) {
	for _, tt := range []struct {
		language                        sandbox.Language
		program, before, forever, after string
		want                            string
	}{
		{sandbox.Python, "python3", "x = 5", "while True: pass", "print(x)", "KeyboardInterrupt"},
		{sandbox.JavaScript, "node", "var x = 5", "while (true);", "console.log(x)", "Interrupted"},
		{sandbox.JavaScript, "node", "var x = 5", "new Promise(r => setTimeout(r, 600000))", "console.log(x)", "Interrupted"},
	} {
		t.Run(string(tt.language)+" "+tt.forever, func(t *testing.T) {
			needs.Command(t, tt.program)
			k, err := Start(t.Context(), Config{Language: tt.language, Spawn: spawnReal, Env: map[string]string{}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(k.Quiet)
			t.Cleanup(k.Kill)
			count := 0
			run := func(code string, interrupt bool) (*Outcome, string) {
				t.Helper()
				count++
				k.Prepare()
				if interrupt {
					k.Interrupt()
				}
				box := NewOutbox(1 << 10)
				out, err := k.Run(&Run{Count: count, Code: code, Env: map[string]string{}}, box)
				if err != nil {
					t.Fatal(err)
				}
				events, _ := box.Take()
				text := ""
				for _, e := range events {
					text += string(e.GetOutput().GetData())
				}
				return out, text
			}
			run(tt.before, false)
			for range 20 {
				out, _ := run(tt.forever, true)
				if !out.Interrupted || out.Exit != 130 || !strings.Contains(out.Error.GetName(), tt.want) {
					t.Fatalf("interrupted before it began: %+v", out)
				}
				if out, text := run(tt.after, false); out.Interrupted || out.Exit != 0 || text != "5\n" {
					t.Fatalf("the next code: %+v, %q", out, text)
				}
			}
		})
	}
}
