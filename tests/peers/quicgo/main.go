// Command quicgo is an HTTP/3 client for the end-to-end tests: independent of the server's QUIC, and able
// to do to a connection what networks do. It prints one JSON document.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
)

type options struct {
	connect     string
	name        string
	ca          string
	paths       string
	ranges      string
	connections int
	rebindEvery int64
	migrateAt   int64
	packetSize  int
	pause       bool
	untilTold   bool
	steady      float64
	attack      string
	timeout     time.Duration
}

// What is printed in the end. `Error` is empty on success; `Kind` sorts the errors that tests expect.
type report struct {
	Responses   []response     `json:"responses,omitempty"`
	Rebinds     int            `json:"rebinds"`
	Migrations  int            `json:"migrations"`
	Connections int            `json:"connections"`
	Complete    int            `json:"complete"`
	Errors      map[string]int `json:"errors,omitempty"`
	Error       string         `json:"error,omitempty"`
	Kind        string         `json:"kind,omitempty"`
}

func main() {
	var o options
	flag.StringVar(&o.connect, "connect", "", "address and port of the server")
	flag.StringVar(&o.name, "name", "", "host name for TLS and :authority")
	flag.StringVar(&o.ca, "ca", "", "PEM file of the CA")
	flag.StringVar(&o.paths, "paths", "/", "paths to GET one after the other, separated by commas")
	flag.StringVar(&o.ranges, "ranges", "", "byte ranges to GET of the first path, separated by commas")
	flag.IntVar(&o.connections, "connections", 1, "connections, all open at the same time")
	flag.Int64Var(&o.rebindEvery, "rebind-every", 0, "change the local port whenever this many bytes came in")
	flag.Int64Var(&o.migrateAt, "migrate-at", 0, "migrate to a new path after this many bytes of a body")
	flag.IntVar(&o.packetSize, "packet-size", 0, "initial size of QUIC packets; 0 leaves it to quic-go")
	flag.BoolVar(&o.pause, "pause", false, "after the responses print `paused`, wait for a line, ask again")
	flag.BoolVar(&o.untilTold, "until-told", false, "ask again and again until a line comes in, then once more")
	flag.Float64Var(&o.steady, "steady", 0, "requests a second, for as many seconds as each line of input says")
	flag.StringVar(&o.attack, "attack", "", "do harm of this kind until the input ends")
	flag.DurationVar(&o.timeout, "timeout", 60*time.Second, "limit for everything")
	flag.Parse()

	result, err := run(&o)
	if result == nil {
		// It has printed what it had to say.
		if err != nil {
			fmt.Fprintln(os.Stderr, "quicgo:", err)
			os.Exit(1)
		}
		return
	}
	if err != nil {
		result.Error, result.Kind = err.Error(), kind(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, "quicgo:", err)
		os.Exit(1)
	}
	if result.Error != "" {
		os.Exit(1)
	}
}

func run(o *options) (*report, error) {
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		return &report{}, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return &report{}, fmt.Errorf("%s: no certificate", o.ca)
	}
	trust := &tls.Config{RootCAs: pool, ServerName: o.name}
	switch {
	case o.steady > 0:
		return nil, steady(o, trust)
	case o.attack != "":
		return nil, attack(o, trust)
	}
	if o.connections > 1 {
		return many(o, trust)
	}
	return one(o, trust)
}

func kind(err error) string {
	var (
		reset     *quic.StatelessResetError
		idle      *quic.IdleTimeoutError
		handshake *quic.HandshakeTimeoutError
		app       *quic.ApplicationError
	)
	switch {
	case errors.As(err, &reset):
		return "stateless-reset"
	case errors.As(err, &idle):
		return "idle-timeout"
	case errors.As(err, &handshake):
		return "handshake-timeout"
	case errors.As(err, &app):
		return fmt.Sprintf("application-%#x", uint64(app.ErrorCode))
	}
	return "other"
}

// Tells whoever started this that the first round is over, and waits to be told to go on.
func pause() error {
	fmt.Println("paused")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// Closed once whoever started this gives it a line, or goes.
func told() <-chan struct{} {
	channel := make(chan struct{})
	go func() {
		defer close(channel)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}()
	return channel
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
