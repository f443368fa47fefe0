//go:build tools

// Package h2spec pins h2spec, a conformance test of HTTP/2 servers.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
