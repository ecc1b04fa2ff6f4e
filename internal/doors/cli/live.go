package cli

import (
	"encoding/json"
	"fmt"
	"strings"
)

// liveTable returns a function that prints rows one by one, the first below the headings.
// Columns have the given widths; the last ones may have none. Longer cells shift the rest
// of their row.
func (c *call) liveTable(headings []string, widths ...int) func(cells []string) error {
	line := func(cells []string) error {
		var b strings.Builder
		for i, cell := range cells {
			if cell = cleanLine(cell); cell == "" {
				cell = "-"
			}
			if i < len(widths) {
				cell = fmt.Sprintf("%-*s  ", widths[i], cell)
			}
			b.WriteString(cell)
		}
		return c.print(strings.TrimRight(b.String(), " ") + "\n")
	}
	headed := false
	return func(cells []string) error {
		if !headed {
			headed = true
			if err := line(headings); err != nil {
				return err
			}
		}
		return line(cells)
	}
}

// printLine prints a value as one line of JSON.
func (c *call) printLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a line: %w", err)
	}
	return c.print(string(line) + "\n")
}
