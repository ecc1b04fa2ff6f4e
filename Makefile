# The commands of this repository; each is what it says. "make demo" is the one to
# begin with, "make check" the one after each change, "make test" before it lands.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Cove is built without cgo: a binary that needs a C library cannot execute
# itself again in gVisor's empty root. Checks and tests are built alike, so that
# gVisor is compiled once for all but the race detector, which needs cgo.
export CGO_ENABLED = 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
GOBUILD = go build -ldflags "-s -w -X main.version=$(VERSION)"
# All that is compiled or embedded: scripts, pages and interpreters' drivers too.
SOURCES = $(shell find api client cmd internal sandbox -type f | grep -v -e testdata -e _test.go -e $(AGENT) -e $(DIST)/ -e $(NOVNC) -e $(ACORN)) go.mod go.sum
AGENT = internal/guest/agentbin/bin/agent

# What is made of npm's packages, which console/package-lock.json pins, is embedded and
# never committed: the console, noVNC for live views, and acorn, which parses JavaScript,
# for the agent. Without Node.js cove is built without, and says so where they are missed.
NPM_PACKAGES = console/node_modules/.package-lock.json
DIST = internal/doors/console/dist
NOVNC = internal/doors/preview/view/novnc
ACORN = internal/guest/agent/kernel/drivers/acorn
CONSOLE_SOURCES = $(shell find console -type f -not -path 'console/node_modules/*') api/openapi.yaml
NODE = $(shell command -v npm >/dev/null && node -p 'const [a, b] = process.versions.node.split("."); a > 20 || a == 20 && b >= 19' 2>/dev/null)
ifeq ($(NODE),true)
CONSOLE = $(DIST)/index.html
VIEWER = $(NOVNC).js
PARSER = $(ACORN)/acorn.js
else
NO_NODE = @echo "bin/cove is built without the console, the live view of computers, and await at the top of JavaScript: these need Node.js 20.19 or later with npm (Debian 13: apt-get install nodejs npm; else from nodejs.org). Then run make build again" >&2
endif

EMBEDDED = $(AGENT) $(CONSOLE) $(VIEWER)

# What looks at the Go code. It needs more modules than Cove itself, which tools.mod is
# spared.
GOLANGCI_VERSION = v2.15.0
GOLANGCI_LINT := bin/golangci-lint-$(GOLANGCI_VERSION)-$(shell go env GOVERSION)

# Where make install puts the program.
PREFIX ?= /usr/local

.PHONY: build embedded install demo check test test-all soak test-nodes test-templates test-kube lint fuzz bench bench-fleet bench-kube generate clean deps compiled

build: bin/cove ## build bin/cove

embedded: $(EMBEDDED)

# gVisor is patched for bin/cove only; "go build ./cmd/cove" makes the program with
# the module as it is, whose forks load all of their memory.
bin/cove: $(SOURCES) $(EMBEDDED) bin/gvisor.made
	$(GOBUILD) -modfile bin/gvisor.mod -o $@ ./cmd/cove
	$(NO_NODE)

# The controller for objects of Kubernetes, a module of its own.
bin/cove-kubernetes: $(shell find client sandbox internal/doors/operation deploy/controller -name '*.go' -not -name '*_test.go') deploy/controller/go.mod deploy/controller/go.sum
	cd deploy/controller && $(GOBUILD) -o $(CURDIR)/$@ .

bin/gvisor.made: scripts/patch-gvisor go.mod go.sum $(shell find patches -type f)
	./scripts/patch-gvisor
	@touch $@

$(NPM_PACKAGES): console/package-lock.json
	npm ci --prefix console --no-audit --no-fund
	@mkdir -p $(@D) && touch $@

# A build that fails leaves nothing that a later one would embed.
$(DIST)/index.html: $(CONSOLE_SOURCES) $(NPM_PACKAGES)
	npm run build --prefix console || { rm -rf $(DIST); exit 1; }
	@touch $@

# Licences come first, so that nothing is embedded without.
$(NOVNC).js: $(NPM_PACKAGES)
	cd console/node_modules/@novnc/novnc && { node -p '"novnc.js is noVNC " + require("./package.json").version + " in one file. Its source is at https://github.com/novnc/noVNC.\n"' && \
		cat LICENSE.txt docs/LICENSE.MPL-2.0 vendor/pako/LICENSE; } >$(CURDIR)/$(NOVNC)-LICENSE.txt
	cd console && node_modules/.bin/esbuild @novnc/novnc --bundle --format=esm --minify --target=es2022 --log-level=warning \
		--banner:js='/* noVNC: see novnc-LICENSE.txt */' --outfile=$(CURDIR)/$@

$(ACORN)/acorn.js: $(NPM_PACKAGES)
	install -D -m 644 console/node_modules/acorn/LICENSE $(@D)/LICENSE
	install -m 644 console/node_modules/acorn/dist/acorn.js $@

$(AGENT): $(SOURCES) $(PARSER)
	$(GOBUILD) -o $@ ./cmd/cove-agent

install: build ## install cove below PREFIX, /usr/local unless told
	install -D -m 755 bin/cove $(DESTDIR)$(PREFIX)/bin/cove

demo: build ## build, then do the main job through a real MCP session
	go run ./examples/demo bin/cove

deps: ## install what the tests need (Debian; as an ordinary user it only says what is missing)
	./scripts/install-test-deps

# What lint, the program and its tests are compiled of, but for what is embedded. It is
# compiled while deps waits for downloads and the disk.
compiled: bin/gvisor.made $(GOLANGCI_LINT)
	go build -modfile bin/gvisor.mod -o /dev/null ./cmd/cove
	$(if $(shell command -v gcc),CGO_ENABLED=1 go build -race -gcflags=modernc.org/sqlite/lib=-race=false ./internal/...)

$(GOLANGCI_LINT):
	GOOS= GOARCH= GOBIN=$(CURDIR)/bin/install go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv bin/install/golangci-lint $@

# What deps installs, Node.js among it, is looked for by another make.
check: ## lint, and the tests that start no sandbox
	$(MAKE) -j2 deps compiled
	$(MAKE) lint embedded
	./scripts/test check

test: ## check, and each verb once in real sandboxes
	$(MAKE) -j2 deps compiled
	$(MAKE) lint build
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test test

test-all: ## all tests, or those of PACKAGES: half an hour
	$(MAKE) -j2 deps compiled
	$(MAKE) lint build
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test all $(PACKAGES)

soak: deps ## all tests with all of their cases, or those of PACKAGES: hours, before a release
	$(MAKE) lint build
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test soak $(PACKAGES)
	$(if $(PACKAGES),,$(MAKE) fuzz)

test-nodes: deps ## what "make test-all" has in real sandboxes, on nodes
	$(MAKE) build
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test nodes

test-kube: ## install Cove on a real Kubernetes on this machine and use it (root; minutes, and downloads the first time)
	./scripts/install-kube-deps
	$(MAKE) build bin/cove-kubernetes
	cd deploy/controller && go test ./...
	COVE_BIN=$(CURDIR)/bin/cove go test -tags kube -count=1 -timeout 40m -v ./test/kube

test-templates: deps ## build the built-in templates for real and use them: minutes, and downloads
	$(MAKE) build
	COVE_BIN=$(CURDIR)/bin/cove go run ./test/templates

# What looks at the OpenAPI description, by its lock file.
OPENAPI_LINT = test/openapi/node_modules/.package-lock.json

$(OPENAPI_LINT): test/openapi/package-lock.json
	npm ci --prefix test/openapi

# It looks at Cove with the gVisor that bin/cove is compiled of, so that none other is
# compiled for it.
lint: $(OPENAPI_LINT) $(GOLANGCI_LINT) bin/gvisor.made $(if $(CONSOLE),$(NPM_PACKAGES)) ## golangci-lint, format, the OpenAPI description, and the console
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	GOWORK=$(CURDIR)/bin/gvisor.work $(GOLANGCI_LINT) run ./...
	cd deploy/controller && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd test/openapi && REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true node_modules/.bin/redocly lint --config redocly.yaml ../../api/openapi.yaml
	cd test/openapi && node_modules/.bin/spectral lint --ruleset spectral.yaml --fail-severity hint ../../api/openapi.yaml
	$(if $(CONSOLE),npm run check --prefix console)

fuzz: ## run every fuzz target for FUZZTIME each
	./scripts/fuzz $(or $(FUZZTIME),20s)

bench: build ## print the numbers of GOALS.md; ONLY=e2b,code measures parts
	COVE_BIN=$(CURDIR)/bin/cove go run ./test/bench $(if $(ONLY),-only $(ONLY))

bench-fleet: ## print how long a restart and a placement take with 50,000 sandboxes on 200 nodes (PostgreSQL)
	go test -run '^$$' -bench Fleet -benchtime 1x -timeout 30m ./test/bench/fleet

bench-kube: ## print the times of sandboxes on a real Kubernetes on this machine, beside those of one machine (root)
	./scripts/install-kube-deps
	$(MAKE) build
	COVE_BIN=$(CURDIR)/bin/cove go test -tags kube -run '^$$' -bench Cluster -benchtime 1x -timeout 60m ./test/kube

generate: ## regenerate protobuf code, OpenAPI file and snapshots
	./scripts/generate

clean:
	rm -rf bin $(AGENT) $(DIST) $(NOVNC)* $(ACORN) console/node_modules
