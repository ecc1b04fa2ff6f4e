package control

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// Rules are Cove's headers, and come back as they were given.
func TestRules(t *testing.T) {
	const text = `{"rules":{"*.b.example":[{"transform":{"headers":{"X":"$1"}}}],"a.example":[{"transform":{"headers":{"Authorization":"Bearer ${e2b.secrets.gh} ${e2b.secrets.b-2}"}}}]}}`
	var e egress
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if err := e.check(""); err != nil {
		t.Fatal(err)
	}
	policy := policyOf(&sandbox.NetworkPolicy{Headers: []sandbox.HeaderRule{{To: "old.example"}}}, &e, nil)
	want := []sandbox.HeaderRule{
		{To: "*.b.example", Set: map[string]string{"X": "$1"}},
		{To: "a.example", Set: map[string]string{"Authorization": "Bearer ${secret:gh} ${secret:b-2}"}},
	}
	if diff := cmp.Diff(want, policy.Headers); diff != "" {
		t.Error(diff)
	}
	back, err := json.Marshal(egress{Rules: viewRules(policy.Headers)})
	if err != nil || string(back) != text {
		t.Errorf("%s, %v", back, err)
	}
	if policy := policyOf(policy, &egress{}, nil); policy.Headers != nil {
		t.Errorf("rules that are left out stay: %+v", policy.Headers)
	}
	for _, text := range []string{
		`{"rules":{"a.example":[]}}`, `{"rules":{"a.example":[{},{}]}}`, `{"rules":{"a.example":[{"transform":{"headers":{"X":"${e2b.identity.tokens.x}"}}}]}}`,
		`{"rules":{"a.example":[{"transform":{"headers":{"X":"${e2b.secrets.a b}"}}}]}}`, `{"rules":{"a.example":[{"transform":{"headers":{"X":"${secret:gh}"}}}]}}`,
	} {
		var e egress
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if err := e.check(""); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}
