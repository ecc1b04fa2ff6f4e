package control

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
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

// vault is a service with all secrets but one, which counts how often one is looked for.
type vault struct {
	sandbox.Service
	asked int
}

func (v *vault) GetSecret(_ context.Context, ref string) (*sandbox.Secret, error) {
	v.asked++
	if ref == "none" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no secret %s", ref)
	}
	return &sandbox.Secret{Name: ref}, nil
}

// Attack: rules that name a secret often, or very many, keep nobody busy.
func TestFindSecrets(t *testing.T) {
	var many strings.Builder
	for i := range 1000 {
		many.WriteString("${e2b.secrets.s" + strconv.Itoa(i) + "}")
	}
	for _, tt := range []struct {
		value, says string
		asked       int
	}{
		{strings.Repeat("${e2b.secrets.gh}", 1000), "", 1}, {many.String(), "name fewer", sandbox.MaxSecretsPerSandbox}, {"${e2b.secrets.none}", "create it first", 1},
	} {
		var r networkRule
		r.Transform.Headers = map[string]string{"X": tt.value}
		svc := &vault{}
		err := (&plane{cfg: Config{Service: svc}}).findSecrets(t.Context(), map[string][]networkRule{"a.example": {r}})
		if svc.asked != tt.asked || (err == nil) != (tt.says == "") || err != nil && (sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%.40s: %v after %d questions, want %q after %d", tt.value, err, svc.asked, tt.says, tt.asked)
		}
	}
}
