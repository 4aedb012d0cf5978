SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A clone that belongs to another user makes git refuse, and then `go build` too.
VCS     := $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)
KERNELS ?= 5.10 6.1 6.12
# The kernel that runs the SCTP packets: many hosts have no sctp module, Debian's kernels do.
SCTP_KERNEL ?= 6.1
FUZZTIME    ?= 30s
SWITCHES    ?= 25
STORE := $(or $(VMRUN_STORE),/var/cache/vmrun)
VMRUN := $(CURDIR)/test/vm/vmrun

.PHONY: help build test check unit sctp e2e test-kernels bench run switches fuzz generate clean deps

help: ## print this help
	@echo 'Usage: make TARGET. Tests and `run` need root; they work in network namespaces of their own.'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/kube-proxy
	@mkdir -p bin
	CGO_ENABLED=0 go build $(VCS) -trimpath -o bin/kube-proxy ./cmd/kube-proxy

test: deps check unit sctp e2e ## everything: deps, format, vet, staticcheck, real-kernel tests, SCTP in a VM, a real API server

check: ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l .); if [[ $$bad ]]; then echo "gofmt -w these:" $$bad >&2; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	cd test/e2e && go vet ./...

unit: ## go test ./..., with the tests that use this machine's kernel
	@if (($$(id -u))); then echo 'make: the tests that use the kernel need root' >&2; exit 1; fi
	go test -timeout 10m ./...

sctp: bin/nftables.test bin/iptables.test $(STORE)/$(SCTP_KERNEL) ## the scenarios with SCTP packets, in a VM
	@echo '== SCTP on kernel $(SCTP_KERNEL)'
	@names=$$(grep -li sctp testdata/scenarios/*.txtar | xargs -n1 basename -s .txtar | paste -sd'|'); log=bin/sctp.log; \
	$(VMRUN) --kernel $(SCTP_KERNEL) --timeout 600 -- bash -euc "(cd plane/nftables; \
	    ../../bin/nftables.test -test.v -test.run '^TestConformance$$/scenarios/^($$names)\$$'); (cd plane/iptables; \
	    ../../bin/iptables.test -test.v -test.run '^TestConformance$$/(nft|legacy)/scenarios/^($$names)\$$')" \
	  >$$log 2>&1 || { tail -n 60 $$log; exit 1; }; \
	grep -E '^ +--- PASS|scenarios; by family' $$log || { tail -n 60 $$log; exit 1; }; \
	(($$(grep -c ' 0 lines need SCTP' $$log) == 3)) || { echo 'make: SCTP packets were not sent' >&2; exit 1; }

e2e: ## a real etcd and kube-apiserver (test/e2e)
	cd test/e2e && go test -v -timeout 15m ./... | grep -v '^=== '

# One VM a kernel: booting costs as much as several tests. Emulated code is slow, and garbage collection is much of it;
# -test.short makes the random walk between states shorter, and nothing else. iptables starts programs, which is slow there:
# both back ends run the scenarios that together use each match and target, and all of them with FULL=1.
IPTABLES_IN_VM := all-ways-in external-policy-local hairpin-affinity health-check-port no-endpoints nodeport-addresses-localhost \
  restart sctp session-affinity source-ranges terminating-external-local udp
empty :=
space := $(empty) $(empty)
# Left out in emulation: one rule list of 5,000 endpoints, over which an emulated kernel 6.1 sits for more than ten minutes.
TOO_LARGE_IN_VM := generated-five-thousand-endpoints
IPTABLES_TESTS := $(if $(FULL),TestConformance|TestDrift|TestInvalid|TestRestart|TestTakeOver,TestConformance/(nft|legacy)/scenarios/^($(subst $(space),|,$(strip $(IPTABLES_IN_VM))))$$)
test-kernels: deps bin/nftables.test bin/conntrack.test bin/iptables.test bin/cleanup.test bin/kernel.test ## the suites that use the kernel on 5.10, 6.1 and 6.12, each in a VM (KERNELS=..., FULL=1: all of iptables)
	@for k in $(KERNELS); do \
	  [[ -e $(STORE)/$$k/initrd.cpio ]] || $(VMRUN) --setup --kernel $$k; \
	  echo "== nftables, conntrack and iptables on kernel $$k"; start=$$SECONDS; \
	  TESTS='$(IPTABLES_TESTS)' GOGC=400 $(VMRUN) --kernel $$k --timeout $(if $(FULL),4200,1500) -- bash -euc 'cd conntrack; ../bin/conntrack.test; \
	    cd ../plane/nftables; ../../bin/nftables.test -test.short -test.timeout 18m; \
	    cd ../iptables; ../../bin/iptables.test -test.run "$$TESTS" -test.skip ///$(TOO_LARGE_IN_VM) -test.timeout 60m; \
	    cd ../../cleanup; ../bin/cleanup.test -test.short -test.run IPVS; \
	    cd ../internal/kernel; ../../bin/kernel.test -test.run Lock'; \
	  echo "== kernel $$k: ok, $$((SECONDS - start)) s"; \
	done

bench: deps ## how fast it is, as a table (ARGS=... go to the program, PEER=... is an upstream kube-proxy to measure beside it)
	go run $(VCS) ./bench $(ARGS)

run: deps build ## a lab of network namespaces with Services served by the kernel (ARGS=--once: print and exit; ARGS='--mode iptables')
	@go build $(VCS) -o bin/demo ./internal/demo && exec bin/demo $(ARGS)

switches: deps ## 100 changes between the modes under traffic (SWITCHES=...: to and fro, for each back end of iptables)
	go test -count=1 -v -timeout 30m ./cleanup -run TestSwitchUnderTraffic -switches $(SWITCHES)

fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' . | grep -v '^./test/e2e/' | \
	while IFS=: read -r file _ func; do \
	  name=$${func#func }; echo "== $$(dirname $$file) $$name"; \
	  go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$(dirname $$file)"; \
	done

generate: bin/nftables.test ## write docs/conformance.md anew, from runs on this machine's kernel and on the others
	cd plane/nftables && PLANETEST_RECORD=1 ../../bin/nftables.test -test.run TestConformance
	PLANETEST_RECORD=1 go test -count=1 ./plane/iptables -run TestConformance
	PLANETEST_RECORD=1 $(MAKE) test-kernels FULL=1
	go test ./plane/planetest -run TestPage -update

clean: ## remove what was built; VM kernels in /var/cache/vmrun stay
	rm -rf bin test/e2e/bin
	find . -name '*.test' -type f -delete

deps: ## install with apt-get what is missing of the tools that tests use
	@need=(); want() { command -v "$$1" >/dev/null || need+=("$$2"); }; PATH=$$PATH:/usr/sbin:/sbin; \
	want nft nftables; want iptables iptables; want ipset ipset; want conntrack conntrack; want ip iproute2; want sysctl procps; want etcd etcd-server; \
	want curl curl; want qemu-system-x86_64 qemu-system-x86; want busybox busybox-static; want modprobe kmod; want cpio cpio; \
	want zstd zstd; want xz xz-utils; \
	((!$${#need[@]})) || { \
	  if (($$(id -u))); then echo "make: not root, and these packages are missing: $${need[*]}" >&2; exit 1; fi; \
	  command -v apt-get >/dev/null || { echo "make: install what gives these Debian packages: $${need[*]}" >&2; exit 1; }; \
	  echo "installing $${need[*]}"; \
	  apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$$@" >/dev/null; }; \
	  apt install -y --no-install-recommends "$${need[@]}" 2>/dev/null || \
	    { apt update; apt install -y --no-install-recommends "$${need[@]}"; }; }

bin/nftables.test: PKG := ./plane/nftables
bin/iptables.test: PKG := ./plane/iptables
bin/conntrack.test: PKG := ./conntrack
bin/cleanup.test: PKG := ./cleanup
bin/kernel.test: PKG := ./internal/kernel
bin/nftables.test bin/iptables.test bin/conntrack.test bin/cleanup.test bin/kernel.test: FORCE
	@mkdir -p bin
	go test -c -o $@ $(PKG)

$(STORE)/%:
	$(VMRUN) --setup --kernel $*

.PHONY: FORCE
FORCE:
