package interpreter

import (
	"encoding/json"
	"slices"

	"github.com/cove-sh/cove/sandbox"
)

// Types of data that Cove's interpreters produce and E2B does not have.
const (
	typeChart = "application/vnd.cove.chart+json"
	typeFrame = "application/vnd.dataframe+json"
)

// fields maps types of data to the names of clients.
var fields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "text/latex": "latex",
	"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
	"application/json": "json", "application/javascript": "javascript",
	typeChart: "chart",
}

// resultOf returns a rich output in the form of clients. Types without a name are in
// extra.
func resultOf(o *sandbox.CodeOutput) map[string]any {
	m := map[string]any{"type": "result", "is_main_result": o.Result}
	extra := map[string]json.RawMessage{}
	for mime, value := range o.Data {
		switch name := fields[mime]; {
		case name == "text":
			m[name] = unquoted(value)
		case name != "":
			m[name] = value
		case mime == typeFrame:
			if columns := columnsOf(value); columns != nil {
				m["data"] = columns
			}
		default:
			extra[mime] = value
		}
	}
	m["extra"] = extra
	return m
}

// unquoted removes the quotes from the representation of a string.
func unquoted(value json.RawMessage) any {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return value
	}
	if n := len(text); n >= 2 && text[0] == text[n-1] && (text[0] == '\'' || text[0] == '"') {
		text = text[1 : n-1]
	}
	return text
}

// columnsOf converts a table's rows to columns; nil if value is not a table.
func columnsOf(value json.RawMessage) map[string][]json.RawMessage {
	var table struct {
		Columns []string                     `json:"columns"`
		Records []map[string]json.RawMessage `json:"records"`
	}
	if json.Unmarshal(value, &table) != nil || len(table.Columns) == 0 {
		return nil
	}
	columns := make(map[string][]json.RawMessage, len(table.Columns))
	for _, name := range slices.Compact(slices.Sorted(slices.Values(table.Columns))) {
		column := make([]json.RawMessage, len(table.Records))
		for i, row := range table.Records {
			if column[i] = row[name]; column[i] == nil {
				column[i] = json.RawMessage("null")
			}
		}
		columns[name] = column
	}
	return columns
}
