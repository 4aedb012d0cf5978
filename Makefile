SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A clone that belongs to another user makes git refuse, and then `go build` too.
VCS     := $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)
COMMIT   = $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
# Tests that walk at random take the walks of the commit, here as in CI (test/seedtest); `go test` alone takes others.
export KUBE_PROXY_SEED ?= $(shell printf %d 0x$$(git rev-parse --short=12 HEAD 2>/dev/null || echo 1))
# Builds, tests and vet share what one of them compiled, in every clone.
override GOFLAGS := $(or $(GOFLAGS),$(shell go env GOFLAGS)) -trimpath
export GOFLAGS
# The oldest that the project supports, and what Debian 12 and 13 have.
KERNELS  ?= 5.10 6.1 6.12
FUZZTIME ?= 30s
SWITCHES ?= 25
# The tools are a module of their own. `$(call tool,NAME)` builds one and starts it here.
tool = go -C tools build $(VCS) -o $(CURDIR)/bin/tools/ ./$(1) && bin/tools/$(1)
# What answers the commands, beside the engine that they ask.
ASKED := ./debug/api ./event ./debug/inspect ./status ./trace
STORE := $(or $(VMRUN_STORE),/var/cache/vmrun)

.PHONY: objects test-objects site vm help build build-windows image image-lock scale test-asked test-image test-monitoring test-status test check unit unit-here unit-tools trace-worlds e2e pods conformance test-kernels mutants release-check bench run switches fuzz generate clean deps release verify-release vuln

help: ## print this help
	@echo 'Usage: make TARGET. Tests and `run` need root; they work in network namespaces of their own.'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/kube-proxy
	@mkdir -p bin
	CGO_ENABLED=0 go build $(VCS) -o bin/kube-proxy ./cmd/kube-proxy

build-windows: # build bin/kube-proxy-windows-amd64.exe and bin/kube-proxy-windows-arm64.exe
	@mkdir -p bin
	for arch in amd64 arm64; do CGO_ENABLED=0 GOOS=windows GOARCH=$$arch go build $(VCS) -o bin/kube-proxy-windows-$$arch.exe ./cmd/kube-proxy; done

# URL is the https address where the files will be: the manifest for krew names it.
release: # write bin/release/VERSION: archives, image, SBOM, provenance, sums, signature (VERSION=0.1.0 KEY=private key, PEM)
	@$(call tool,release) -version "$(VERSION)" $(if $(KEY),-key $(KEY)) $(if $(URL),-url $(URL)) $(MIRRORS) $(ARGS)

verify-release: # check a release, and rebuild it from its commit (DIR=bin/release/0.1.0 PUBLIC=public key, PEM)
	@$(call tool,release) verify -o "$(DIR)" $(if $(PUBLIC),-public $(PUBLIC)) $(MIRRORS)

vuln: # known vulnerabilities of what is linked, by govulncheck (VULNDB=folder with a copy of the Go vulnerability database)
	@[[ -f "$(VULNDB)/index/db.json" ]] || { \
	  echo 'make: no vulnerability database, nothing is checked: name the folder of a copy with VULNDB=... (it has index/db.json)' >&2; exit 1; }
	@check=$$(go -C tools tool -n govulncheck); found=0; for dir in . tools; do echo "== $$dir"; \
	  (cd $$dir && $$check -db "file://$(abspath $(VULNDB))" ./...) || found=1; done; exit $$found

# IMAGE names it, TAG is its version; DEBIAN and DEBIAN_SECURITY are mirrors in place of those of this machine's apt sources.
MIRRORS = $(if $(DEBIAN),-debian $(DEBIAN)) $(if $(DEBIAN_SECURITY),-debian-security $(DEBIAN_SECURITY))
image: ## write bin/kube-proxy-image.tar, a container image for linux/amd64 and linux/arm64 (IMAGE=localhost/kube-proxy TAG=...)
	@$(call tool,image) $(if $(IMAGE),-name $(IMAGE)) $(if $(TAG),-tag $(TAG)) $(MIRRORS) $(ARGS)

# Of its own build, so that it is right whatever lies in bin.
test-image: deps $(STORE)/6.12 ## what is in the image, that two builds are equal, and that it serves in containers; what CI runs third
	@$(call tool,image) -o bin/test-image/kube-proxy-image.tar
	go -C tools test -count=1 ./image -image $(CURDIR)/bin/test-image/kube-proxy-image.tar
	go -C tools test -c -o $(CURDIR)/bin/test-image/image.test ./image
	go -C tools build $(VCS) -o $(CURDIR)/bin/test-image/demo ./demo
	cd tools/image && ../../test/vm/vmrun --kernel 6.12 -- bash -ec 'for tests; do ../../bin/test-image/image.test -test.v -test.run "$$tests" \
	  -image ../../bin/test-image/kube-proxy-image.tar -demo ../../bin/test-image/demo; done' bash TestKernelLoads 'TestServes/^ipvs$$'

site: # write docs as HTML with a search to bin/site (SOURCE=... is the address of the repository)
	@$(call tool,site) -o bin/site $(if $(SOURCE),-source $(SOURCE))

# Chromium is much to install, and needed here alone.
# axe-core of Deque, as npm packs it, finds what keeps people from using the page.
AXE := 4.14.1
AXE_SUM := 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
test-status: deps ## the status page in a real Chromium, with axe-core, against a proxy with 10,000 Services (ARGS=-pictures: rewrite docs/pictures); what CI runs last
	@test/deps chromium chromedriver
	@mkdir -p bin; echo '$(AXE_SUM)  bin/axe.min.js' | sha256sum --check --status 2>/dev/null || { echo 'fetching axe-core $(AXE)'; \
	  test/deps node; test/deps npm; \
	  (cd bin && npm pack --silent axe-core@$(AXE) >/dev/null && tar -xzf axe-core-$(AXE).tgz --strip-components=1 package/axe.min.js && rm axe-core-$(AXE).tgz); \
	  echo '$(AXE_SUM)  bin/axe.min.js' | sha256sum --check --quiet; }
	go test -count=1 -v -timeout 20m ./test/page -chromium -axe $(CURDIR)/bin/axe.min.js $(ARGS) | grep -v '^=== '

# Beside what else test-status does.
test-status: test-monitoring test-asked test-objects

# Debian 12's clang, 14.0.6, made the committed objects: other versions make others.
objects: # build the objects of plane/ebpf/bpf with Debian's clang; a part of generate
	@test/deps clang bpf
	go generate ./plane/ebpf/bpf

# In a copy, so that the tree stays as it is.
test-objects: # whether the objects of plane/ebpf/bpf are what Debian's clang makes of the C there; a part of test-status
	@test/deps clang bpf
	@rm -rf bin/_objects; mkdir -p bin/_objects; cp -r plane/ebpf/bpf bin/_objects/bpf; go generate ./bin/_objects/bpf
	@diff -rq plane/ebpf/bpf bin/_objects/bpf || \
	  { echo "make: not what $$(clang --version | head -1) makes of the C; with Debian 12's: make objects" >&2; exit 1; }

# The race detector needs a C compiler, which nothing else does. awk fails where the test was not run.
test-asked: deps # the commands against a proxy that takes in 100 changes a second, with the race detector; a part of test-status
	@test/deps gcc libc
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 10m ./cmd/kube-proxy -run '^TestAskedUnderChanges$$' | \
	  awk '!/^=== /; /^--- PASS: TestAskedUnderChanges/ { ran = 1 } END { exit !ran }'
	CGO_ENABLED=1 go test -race -timeout 10m $(ASKED)

test-monitoring: deps # alerts and dashboard by Debian's promtool and Prometheus, which scrapes proxies with real faults; a part of test-status
	@test/deps promtool prometheus
	go test -count=1 -v -timeout 10m ./test/monitoring -prometheus | grep -v '^=== '

image-lock: # pin the packages of Debian in the image to their present versions
	@$(call tool,image) lock $(MIRRORS)

# The unit tests keep two processors busy, and wait for packets: beside them an API server and a VM make all slower. These wait more.
test: deps check ## all that this machine can prove: format, vet, staticcheck, real-kernel tests, a real API server, IPVS in a VM
	@$(MAKE) unit-here
	@$(MAKE) -j3 --output-sync=target e2e vm unit-tools

check: deps build-windows ## gofmt, go vet, staticcheck, structure, plain English; for Windows build and go vet
	@test/size
	@test/prose
	@bad=$$(gofmt -l .); if [[ $$bad ]]; then echo "gofmt -w these:" $$bad >&2; exit 1; fi
	go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...
	go tool staticcheck ./...
	go -C tools vet ./...
	staticcheck=$$(go tool -n staticcheck); cd tools && $$staticcheck ./...
	cd test/e2e && go vet -tags pods ./...

# Tests that run side by side wait for packets that must not come more than they compute. So do packages, with one more than processors.
PARALLEL := $(shell echo $$((3 * $$(nproc))))
PACKAGES := $(shell echo $$((1 + $$(nproc))))
# -count=1, because a result in Go's cache says nothing of this machine's kernel.
unit: unit-here unit-tools ## go test ./... here and in tools, with the tests that use this machine's kernel

unit-here:
	@if (($$(id -u))); then echo 'make: the tests that use the kernel need root' >&2; exit 1; fi
	go test -count=1 -p $(PACKAGES) -parallel $(PARALLEL) -timeout 20m ./...

unit-tools:
	go -C tools test -count=1 -timeout 10m ./...

e2e: ## a real etcd and kube-apiserver (test/e2e)
	cd test/e2e && go run ./cmd/build
	cd test/e2e && go test -count=1 -v -timeout 25m ./... | grep -v '^=== '

scale: # what many nodes cost an API server, and storms (docs/scale.md; ARGS='-nodes 10,50 -storms restart' go to the program)
	cd test/e2e && go run ./cmd/build && go run ./cmd/scale $(ARGS)

pods: deps ## the image in a real containerd, started by a real kubelet from the chart and from kubeadm's manifests (test/e2e/pods)
	cd test/e2e && go test -count=1 -v -tags pods -timeout 30m ./pods | grep -v '^=== '

# The programs of pods of the tests come from this machine. PROCS tests run side by side; most of them wait.
conformance: MODE ?= ebpf
conformance: PROCS ?= 4
conformance: deps # upstream's [sig-network] tests on three nodes (MODE=ebpf PROCS=4; ARGS='-focus Services -nodeport-addresses=' go to the program)
	@test/deps bash cni curl dig getent iperf nc socat ss wget
	cd test/e2e && go run ./cmd/conformance -mode $(MODE) -procs $(PROCS) $(ARGS)

vm: deps $(STORE)/6.12 # mode ipvs in a VM with kernel 6.12, a part that takes a minute
	@test/vm/suites --part 6.12

test-kernels: deps $(KERNELS:%=$(STORE)/%) ## what depends on the kernel, SCTP too, on 5.10, 6.1 and 6.12, in VMs (KERNELS=...; FULL=1: all scenarios)
	@test/vm/suites $(if $(FULL),--full) $(KERNELS)

bench: deps $(STORE)/6.12 ## how fast it is, into docs/performance.json and tables (PEER=... is an upstream kube-proxy to measure beside it; ARGS=...)
	@$(call tool,bench) $(ARGS)

# Modes nftables and userspace need no program. The packages of both programs are compiled once, and counted meanwhile.
PROGRESS := awk -v terminal="$$([ -t 1 ] && echo 1)" -v every=50 ' \
  /^[A-Za-z0-9.\/_~-]+$$/ { n++; if (terminal) printf "\r\033[Kcompiled %d packages: %s", n, $$0; else if (n % every == 0) print "compiled " n " packages"; fflush(); next } \
  { if (terminal && n) printf "\r\033[K"; print; fflush() } END { if (terminal && n) printf "\r\033[K" }'
run: TOOLS := $(if $(findstring iptables,$(ARGS))$(findstring ipvs,$(ARGS)),iptables)
run: deps ## a lab of network namespaces with Services served by the kernel (ARGS=--once: print and exit; ARGS='--mode iptables')
	@echo 'building bin/kube-proxy and the demo; for the first time this takes a minute or two'
	@mkdir -p bin/tools; export CGO_ENABLED=0; { go build -v $(VCS) -o bin/kube-proxy ./cmd/kube-proxy && \
	  go -C tools build -v $(VCS) -o $(CURDIR)/bin/tools/ ./demo; } 2>&1 | $(PROGRESS)
	@bin/tools/demo $(ARGS)

# In a VM for a mode that this kernel may lack. The default seed is that of the commit.
trace-worlds: deps build # random worlds in which trace is compared with real packets (SEED=... ROUNDS=20 MODES=nftables,... ARGS=...; MODES=ipvs: in a VM)
	@$(if $(findstring ipvs,$(MODES)),test -d $(STORE)/6.12 || test/vm/vmrun --setup --kernel 6.12)
	@go -C tools build $(VCS) -o ../bin/tools/ ./worlds && \
	$(if $(findstring ipvs,$(MODES)),test/vm/vmrun --kernel 6.12 --timeout 36000 --) bin/tools/worlds $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS)) \
	  $(if $(MODES),-modes $(MODES)) $(ARGS)

switches: deps # 100 changes between the modes under traffic (SWITCHES=...: to and fro, for each back end of iptables)
	go test -count=1 -v -timeout 30m ./plane/cleanup -run TestSwitchUnderTraffic -switches $(SWITCHES)

fuzz: # every fuzz target for FUZZTIME (30s)
	@grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' . | grep -v '^./test/e2e/' | \
	while IFS=: read -r file _ func; do \
	  name=$${func#func }; echo "== $$(dirname $$file) $$name"; \
	  go -C "$$(dirname $$file)" test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x .; \
	done

generate: deps objects # build the eBPF objects, and rewrite docs/conformance.md from complete runs on this machine's kernel and on the others
	PLANETEST_RECORD=$(COMMIT) go test -count=1 -timeout 20m -run TestConformance ./plane/nftables ./plane/iptables ./plane/userspace ./plane/hns ./plane/ebpf
	PLANETEST_RECORD=$(COMMIT) $(MAKE) test-kernels FULL=1
	go test ./test/planetest -run TestPage -update

# Other places for each release, the same for each run of one.
mutants: # change the code at random places, a minute for each package, and see whether its tests notice (ARGS='-seed 7 -for 5m ./engine')
	@$(call tool,mutants) $(or $(ARGS),$(MUTATED))
# The packages whose tests need no API server, container or other kernel, and are their own: plane/iptables has those of
# internal/xtables.
MUTATED = -seed $(KUBE_PROXY_SEED) ./cluster ./config/... ./conntrack ./debug/... ./engine ./event ./failover/... ./health $(filter-out %/internal/xtables,$(shell go list ./internal/...)) ./lb ./logging \
	./mode ./plane/... ./policy ./source/... ./status ./trace

release-check: COMMIT := $(COMMIT)
release-check: ## before a release, for hours: all tests, with -race too, all scenarios on all kernels, all fuzz targets; docs/conformance.md says when
	@[[ $(COMMIT) != *-dirty && $(COMMIT) != unknown ]] || { echo 'make: commit first, for the check notes which commit passed' >&2; exit 1; }
	@command -v gcc >/dev/null || { echo 'make: the race detector needs gcc' >&2; exit 1; }
	$(MAKE) test
	$(MAKE) test-image test-status pods
	env -u KUBE_PROXY_SEED go test -race -timeout 90m ./... # other walks than those of make test
	go -C tools test -race -timeout 30m ./...
	go test -count=1 -timeout 90m ./test/adversary -run TestStranger -large
	env -u KUBE_PROXY_SEED $(MAKE) trace-worlds ROUNDS=2000
	env -u KUBE_PROXY_SEED $(MAKE) trace-worlds ROUNDS=200 MODES=ipvs
	$(MAKE) trace-worlds ARGS=-incidents
	$(MAKE) fuzz FUZZTIME=60s
	$(MAKE) mutants ARGS=
	$(MAKE) generate COMMIT=$(COMMIT)
	go test ./test/planetest -run TestPage -update -release=$(COMMIT) -args $(KERNELS) $(shell uname -r | cut -d. -f1,2)

clean: # remove what was built; VM kernels in /var/cache/vmrun stay
	rm -rf bin test/e2e/bin
	find . -name '*.test' -type f -delete

# A target may want fewer.
TOOLS = nft iptables ipset ipvsadm conntrack ip sysctl etcd curl qemu busybox modprobe cpio zstd xz wine runc containerd qemu-user aspell
deps: # install with apt-get what is missing of the tools that tests use
	@test/deps $(TOOLS)

$(STORE)/%:
	test/vm/vmrun --setup --kernel $*
