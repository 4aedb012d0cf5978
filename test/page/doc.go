// Package page tests the status page in a real Chromium, headless and driven by WebDriver, against
// a real kube-proxy that serves 10,000 Services from a folder. It only runs with -chromium (`make
// test-status`), because Chromium is large and takes memory. The tests of package ui prove the
// content of the page without it. With -pictures it rewrites docs/pictures.
package page
