// Command image makes bin/kube-proxy-image.tar, a container image for linux/amd64 and linux/arm64,
// without a daemon and without a container:
//
//	debian.lock ──▶ .deb files ──▶ programs, what they link to, licences ─┐
//	(versions, SHA-256)   (cache)                                         ├─▶ layers ─▶ OCI layout, SBOM
//	cmd/kube-proxy ──▶ go build for each architecture ────────────────────┘
//
// The layout has two tags. The version's tag has both back ends of iptables and ipset, for all
// modes; the tag with -minimal has only the binary, for the modes that need no other program. They
// share the layer with the binary.
//
// The same commit, lock and Go give the same bytes: times come from SOURCE_DATE_EPOCH or the
// commit, and those of Debian's layer from the lock, so that it stays the same from release to
// release. [docs/image.md] lists the contents of the image with the reasons.
//
//	make image          build
//	make image-lock     write debian.lock again, with Debian's current versions
//
// [docs/image.md]: ../docs/image.md
package main
