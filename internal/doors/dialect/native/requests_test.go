package native

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/sandbox"
)

// toolsOfVerbs are the tools that take the requests of the service's verbs, or why
// no tool does.
var toolsOfVerbs = map[string]struct{ tool, why string }{
	"Create":           {tool: "sandbox_create"},
	"List":             {tool: "sandbox_list"},
	"Update":           {tool: "sandbox_update"},
	"Audit":            {why: "it is for operators"},
	"DrainNode":        {why: "it is for operators"},
	"Resume":           {tool: "sandbox_resume"},
	"Fork":             {tool: "sandbox_fork"},
	"CreateSnapshot":   {tool: "snapshot_create"},
	"ListSnapshots":    {tool: "snapshot_list"},
	"RestoreSnapshot":  {tool: "snapshot_restore"},
	"Diff":             {tool: "sandbox_diff"},
	"Merge":            {tool: "sandbox_merge"},
	"Try":              {tool: "sandbox_try"},
	"Exec":             {tool: "sandbox_exec"},
	"Attach":           {why: "job_get waits for a job"},
	"ReadOutput":       {why: "job_get reads both streams at once"},
	"RunCode":          {tool: "run_code"},
	"RunIsolated":      {tool: "run_code"},
	"SetNetwork":       {tool: "network_set"},
	"NetworkLog":       {tool: "network_log"},
	"FollowNetworkLog": {why: "a result cannot go on"},
	"ListApprovals":    {why: "people answer, not the agent that wants the connection"},
	"AnswerApproval":   {why: "people answer, not the agent that wants the connection"},
	"FollowEvents":     {why: "a result cannot go on"},
	"CreateSecret":     {why: "secrets are made by people"},
	"RotateSecret":     {why: "secrets are made by people"},
	"CreatePreview":    {tool: "preview_create"},
	"LinkPreview":      {tool: "preview_link"},
	"SetEnv":           {tool: "sandbox_env"},
	"ListStats":        {tool: "sandbox_stats"},
	"StatsSeries":      {why: "sandbox_stats takes minutes"},
	"ListFiles":        {tool: "file_list"},
	"ReadFile":         {tool: "file_read"},
	"WriteFile":        {tool: "file_write"},
	"EditFile":         {tool: "file_edit"},
	"MakeDir":          {why: "sandbox_exec does it, and file_write makes the directories of a file"},
	"MakeSymlink":      {why: "sandbox_exec does it"},
	"MoveFile":         {tool: "file_move"},
	"WatchFiles":       {why: "a result cannot go on"},
	"BuildTemplate":    {tool: "template_build"},
	"StartBuild":       {tool: "template_build"},
	"ListBuilds":       {why: "template_build_status follows one"},
	"LinkUpload":       {why: "models have no files outside of sandboxes"},
	"CreateVolume":     {tool: "volume_create"},
	"Screenshot":       {tool: "computer_screenshot"},
	"ControlWindow":    {tool: "computer_windows"},
	"ViewComputer":     {tool: "computer_view"},
	"CreateKey":        {why: "keys are for operators"},
}

// takenOtherwise are fields of requests, by "tool.field", that the tool takes in
// another form, or not, with the reason.
var takenOtherwise = map[string]string{
	"run_code.network":              "code that needs more than a template runs in a sandbox of sandbox_create",
	"run_code.secrets":              "code that needs more than a template runs in a sandbox of sandbox_create",
	"run_code.vcpus":                "code that needs more than a template runs in a sandbox of sandbox_create",
	"run_code.memory_mib":           "code that needs more than a template runs in a sandbox of sandbox_create",
	"run_code.disk_mib":             "code that needs more than a template runs in a sandbox of sandbox_create",
	"run_code.max_pids":             "code that needs more than a template runs in a sandbox of sandbox_create",
	"sandbox_stats.limit":           "it tells of all",
	"sandbox_stats.cursor":          "it tells of all",
	"template_build.packages":       "apt is the same",
	"template_build.registry_login": "models have no passwords",
	"computer_windows.id":           "it is called window",
	"sandbox_try.command":           "each line is a shell's; a command may be written as one",
	"sandbox_try.shell":             "commands are the lines",
}

// Each field of a request is an argument of its verb's tool, or the test says why not.
// If the tool's arguments embed the request, a new field becomes an argument
// automatically.
func TestRequestsAreArguments(t *testing.T) {
	members := make(map[string]bool) // of all types of requests
	service := reflect.TypeFor[sandbox.Service]()
	for verb := range service.Methods() {
		for param := range verb.Type.Ins() {
			if param.PkgPath() != service.PkgPath() || !strings.HasSuffix(param.Name(), "Request") && param != reflect.TypeFor[sandbox.NetworkPolicy]() {
				continue
			}
			collectMembers(members, param)
			by, ok := toolsOfVerbs[verb.Name]
			if !ok {
				t.Errorf("no tool takes the request of %s; make one, or say in toolsOfVerbs why not", verb.Name)
			}
			if by.tool != "" {
				checkArguments(t, by.tool, param)
			}
		}
	}
	checkArguments(t, "sandbox_try", reflect.TypeFor[sandbox.TryCommand]())
	for key := range leftOut {
		if !members[key] && !strings.HasPrefix(key, "snapshotView.") {
			t.Errorf("leftOut names %s, which is not there", key)
		}
	}
	for key := range argumentLimits {
		first, rest, _ := strings.Cut(key, ".")
		switch {
		case rest == "" || members[key]:
		case texts().tools[first] == nil || !has(named(first).Def.InputSchema.(*jsonschema.Schema), strings.Split(rest, ".")):
			t.Errorf("argumentLimits names %s, which is not there", key)
		}
	}
}

func checkArguments(t *testing.T, tool string, request reflect.Type) {
	t.Helper()
	schema := named(tool).Def.InputSchema.(*jsonschema.Schema)
	for _, f := range reflect.VisibleFields(request) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
		case name == "resources" || name == "spec": // whose fields are arguments
			typ := f.Type
			if typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			checkArguments(t, tool, typ)
		case schema.Properties[name] == nil && leftOut[owner(request, f)+"."+name] == "" && takenOtherwise[tool+"."+name] == "":
			t.Errorf("%s has no argument for %s of %s; embed the request, or say in leftOut or takenOtherwise why not", tool, name, request.Name())
		}
	}
}

// collectMembers adds the members of a type, and of those inside it, as "Type.member".
func collectMembers(members map[string]bool, t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || inJSON[t] != nil {
		return
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		members[owner(t, f)+"."+name] = true
		collectMembers(members, f.Type)
	}
}
