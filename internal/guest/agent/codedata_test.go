package agent

import (
	"encoding/json"
	"reflect"
	"testing"
)

// With COVE_DATA set, results that are data or figures are also returned as data;
// without it, they are not.
func TestCodeData(t *testing.T) {
	const chart = "application/vnd.cove.chart+json"
	eachPython(t, func(t *testing.T, s *server) {
		s.py(t, "import matplotlib.pyplot as plt, datetime\nloop = []; loop.append(loop)") // the first import may speak of its fonts
		for name, c := range map[string]struct{ code, mime, want string }{
			"dict":        {"{'a': [1, 2.5, None], 'b': True}", "application/json", `{"a":[1,2.5,null],"b":true}`},
			"list":        {"[1, 'x']", "application/json", `[1,"x"]`},
			"no JSON":     {"[object()]", "application/json", ``},
			"NaN":         {"[float('nan')]", "application/json", ``},
			"itself":      {"loop", "application/json", ``},
			"long":        {"['x' * 2_000_000]", "application/json", ``},
			"pie":         {"w = plt.pie([1, 3], labels=['p', 'q'])", chart, `{"type":"pie","title":null,"elements":[{"label":"p","angle":90,"radius":1},{"label":"q","angle":270,"radius":1}]}`},
			"bar":         {"b = plt.bar(['a', 'b'], [3, 4], label='g'); t = plt.ylabel('Weight (kg)')", chart, `{"type":"bar","title":null,"elements":[{"label":"a","group":"g","value":3},{"label":"b","group":"g","value":4}],"x_label":null,"x_unit":null,"y_label":"Weight (kg)","y_unit":"kg"}`},
			"lying bars":  {"b = plt.barh(['a', 'b'], [3, 3])", chart, `{"type":"bar","title":null,"elements":[{"label":"a","group":"Group 0","value":3},{"label":"b","group":"Group 0","value":3}],"x_label":null,"x_unit":null,"y_label":null,"y_unit":null}`},
			"boxes":       {"b = plt.boxplot([[1, 2, 3, 4, 20]])", chart, `{"type":"box_and_whisker","title":null,"elements":[{"label":"1","min":1,"first_quartile":2,"median":3,"third_quartile":4,"max":4,"outliers":[20]}],"x_label":null,"x_unit":null,"y_label":null,"y_unit":null}`},
			"lying boxes": {"b = plt.boxplot([[1, 2, 3, 4, 20]], vert=False, patch_artist=True)", chart, `{"type":"box_and_whisker","title":null,"elements":[{"label":"1","min":1,"first_quartile":2,"median":3,"third_quartile":4,"max":4,"outliers":[20]}],"x_label":null,"x_unit":null,"y_label":null,"y_unit":null}`},
			"an image":    {"i = plt.imshow([[1, 2]])", chart, `{"type":"unknown","title":null,"elements":[]}`},
			"too long":    {"l = plt.plot(range(30_000))", chart, `{"type":"unknown","title":null,"elements":[]}`},
		} {
			req := in("python", c.code)
			if r := s.code(t, req); c.mime == chart && (len(r.outputs) != 1 || r.outputs[0].GetData()[chart] != nil) || c.mime != chart && r.outputs[0].GetData()[c.mime] != nil {
				t.Errorf("%s: data that nobody asked for: %v", name, r.CodeResult)
			}
			req.Env = map[string]string{"COVE_DATA": "1"}
			r := s.code(t, req)
			if len(r.outputs) != 1 || r.stderr != "" {
				t.Errorf("%s: %d outputs, %q, %v", name, len(r.outputs), r.stderr, r.CodeResult)
				continue
			}
			if got := r.outputs[0].GetData()[c.mime]; !sameJSON(got, c.want) {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
		}
		req := in("python", "fig, (a, b) = plt.subplots(1, 2); t = fig.suptitle('both')\n"+
			"l = a.plot([datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)], [1, 2], label='days')\nd = b.scatter(['u', 'v'], [3, 4])")
		req.Env = map[string]string{"COVE_DATA": "1"}
		r := s.code(t, req)
		var got struct {
			Type, Title string
			Elements    []struct {
				Type     string
				XScale   string `json:"x_scale"`
				Elements []struct {
					Label  string
					Points [][2]any
				}
			}
		}
		if err := json.Unmarshal(r.outputs[0].GetData()[chart], &got); err != nil {
			t.Fatalf("%v: %v %s", err, r.CodeResult, r.stderr)
		}
		if got.Type != "superchart" || got.Title != "both" || len(got.Elements) != 2 || got.Elements[0].Type != "line" || got.Elements[0].XScale != "datetime" ||
			!reflect.DeepEqual(got.Elements[0].Elements[0].Points[1], [2]any{"2024-01-03T00:00:00", 2.0}) || got.Elements[0].Elements[0].Label != "days" ||
			got.Elements[1].Type != "scatter" || !reflect.DeepEqual(got.Elements[1].Elements[0].Points[0], [2]any{"u", 3.0}) {
			t.Errorf("two charts: %+v", got)
		}
	})
}

func sameJSON(got []byte, want string) bool {
	var a, b any
	if want == "" {
		return got == nil
	}
	return json.Unmarshal(got, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && reflect.DeepEqual(a, b)
}
