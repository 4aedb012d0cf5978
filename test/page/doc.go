// Package page tests the status page in a real Chromium, headless and driven by WebDriver, against
// a real kube-proxy that serves 10,000 Services from a folder. It runs with -chromium alone (`make
// test-status`), for Chromium is much to install and takes memory; what the page answers is proven
// without one by package ui. With -pictures it writes docs/pictures anew.
package page
