package docs

// What shows that a line works which cannot be typed here.
const (
	downloads = "test/templates builds for real what takes downloads"
	computer  = "test/computer follows docs/computers.md with a small template"
	internet  = "test/network has an Internet of its own"
	visitors  = "test/preview opens previews by key, link and cookie"
	backups   = "test/checkpoints loses state directories and databases"
	servers   = "test/e2e starts servers with settings of their own"
	databases = "test/e2e and internal/daemon/store/postgres have a database server of their own"
	lost      = "test/checkpoints loses a machine and goes on with another one"
	machines  = "test/nodes has a server with two nodes"
	clusters  = "test/kube installs Cove on a cluster"
	charts    = "test/deploy renders the chart and compares it with what test/kube installs"
	disks     = "internal/machine runs what makes a disk, as root"
)

var readme = page{
	file:  "README.md",
	files: map[string]string{"key.txt": "sk-not-a-key"},
	lines: map[string]special{
		"cove template build": {elsewhere: downloads},
		"cove run -T app":     {elsewhere: downloads},
		"cove computer":       {elsewhere: computer},
	},
}

var pages = []page{
	{file: "docs/agent-sandbox.md", lines: map[string]special{
		"make build":             {elsewhere: clusters},
		"go run ./deploy/image":  {elsewhere: clusters},
		"kubectl apply":          {elsewhere: clusters},
		"kubectl get":            {elsewhere: clusters},
		"kubectl patch":          {elsewhere: clusters},
		"kubectl -n cove exec":   {elsewhere: clusters},
		"kubectl -n cove create": {elsewhere: clusters},
	}},
	{file: "docs/approvals.md", lines: map[string]special{
		"cove approvals ls":    {before: "until cove approvals ls | grep apr-; do sleep 0.1; done", replace: []string{"1m52s", "…"}},
		"cove approvals allow": {elsewhere: internet},
	}},
	{file: "docs/code.md", lines: map[string]special{
		"SOCKET=": {elsewhere: "each line has a shell of its own here"},
		"curl --unix-socket $SOCKET": {
			before:  "cove create --name work",
			replace: []string{"$SOCKET", `"$COVE_STATE_DIR/cove.sock"`, `"MAo="`, `"MAo…"`}, // a slow machine sends two lines at once
		},
	}},
	{file: "docs/forking.md", lines: map[string]special{
		"cove merge work idea-2 --files": {
			before: `cove fork work --name idea-2 &&
				cove exec idea-2 -- sh -c 'echo "print(1)" > main.py; touch test_main.py' &&
				cove exec work -- sh -c 'echo "print(2)" > main.py'`,
			exit: 1,
		},
		"cove merge work idea-2 --files --policy": {},
	}},
	{
		file:  "docs/network.md",
		files: map[string]string{"key.txt": "k1", "password.txt": "p", "new.txt": "k2"},
		lines: map[string]special{
			"cove exec work -- pip install":         {elsewhere: internet},
			"cove exec work -- curl":                {exit: 6},
			"cove netlog -f":                        {interrupted: true},
			"cove secret create anthropic":          {input: "sk-not-a-key"},
			"cove run --secret anthropic -- python": {elsewhere: internet},
		},
	},
	{file: "docs/kubernetes.md", lines: map[string]special{
		"make build":              {elsewhere: clusters},
		"go run ./deploy/image":   {elsewhere: clusters},
		"kubectl apply":           {elsewhere: clusters},
		"kubectl -n cove rollout": {elsewhere: clusters},
		"kubectl -n cove-nodes":   {elsewhere: clusters},
		"kubectl -n cove exec":    {elsewhere: clusters},
		"kubectl -n cove create":  {elsewhere: clusters},
		"kubectl -n cove port":    {elsewhere: clusters},
		"kubectl -n monitoring":   {elsewhere: clusters},
		"COVE_API_KEY=$(cat key)": {elsewhere: clusters},
		"helm install":            {elsewhere: charts},
	}},
	{file: "docs/nodes.md", lines: map[string]special{
		"cove serve --nodes":      {elsewhere: machines},
		"cove node token":         {elsewhere: machines},
		"cove create --dedicated": {elsewhere: machines},
		"cove node run":           {elsewhere: machines},
		"cove node ls":            {elsewhere: machines},
		"cove node drain":         {elsewhere: machines},
		"cove node rm":            {elsewhere: machines},
	}},
	{
		file:  "docs/secrets.md",
		files: map[string]string{"key.txt": "k1", "password.txt": "p"},
		lines: map[string]special{
			"cove secret create anthropic":  {input: "sk-not-a-key"},
			"cove run --secret ANTHROPIC":   {elsewhere: internet},
			"cove exec work -- python3 age": {elsewhere: internet},
		},
	},
	{file: "docs/previews.md", lines: map[string]special{
		"cove serve":        {elsewhere: servers},
		"curl -H":           {elsewhere: visitors},
		"cove port-forward": {interrupted: true, replace: []string{"8080", "18080", "5432", "15433"}},
		"cove create --name db": {
			replace: []string{"8080", "18081"},
		},
		"cove get db": {replace: []string{"8080", "18081"}},
	}},
	{file: "docs/rest.md", lines: map[string]special{
		"curl": {replace: []string{"'https://cove.example.com", `-sS --unix-socket "$COVE_STATE_DIR/cove.sock" 'http://cove`, "https://cove.example.com", `-sS --unix-socket "$COVE_STATE_DIR/cove.sock" http://cove`}},
	}},
	{file: "docs/objects.md", lines: map[string]special{
		"export": {elsewhere: lost}, "cove doctor": {elsewhere: lost}, "cove serve": {elsewhere: lost},
	}},
	{file: "docs/postgres.md", lines: map[string]special{
		"createuser": {elsewhere: databases}, "createdb": {elsewhere: databases},
		"export COVE_STORE": {elsewhere: databases}, "export COVE_SECRETS_KEY": {elsewhere: databases}, "cove doctor": {elsewhere: databases}, "cove serve": {elsewhere: databases},
		"systemctl": {elsewhere: databases}, "pg_dump": {elsewhere: databases}, "tar": {elsewhere: databases},
	}},
	{
		file:  "docs/server.md",
		files: map[string]string{"cove.yaml": "listen: off\n"},
		lines: map[string]special{
			"cove serve":         {elsewhere: servers},
			"cove backup":        {replace: []string{"/etc/cove.yaml", "cove.yaml"}},
			"systemctl stop":     {elsewhere: backups},
			"cove restore":       {elsewhere: backups},
			"cove recover vol-6": {elsewhere: backups},
			"fallocate":          {elsewhere: disks},
			"mkdir":              {elsewhere: disks},
			"echo":               {elsewhere: disks},
			"cp -a":              {elsewhere: disks},
		},
	},
}
