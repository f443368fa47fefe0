// An HTTP/3 file server on quic-go, for the benchmarks: net/http's file server and nothing else.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Requests at once on a connection, as all servers of the benchmarks have.
const maxRequests = 128

// Bytes of the socket's buffers: quic-go warns below 7 MiB.
const socketBuffer = 8 << 20

func main() {
	listen := flag.String("listen", "", "address and port")
	cert := flag.String("cert", "", "PEM file of the certificate chain")
	key := flag.String("key", "", "PEM file of the private key")
	root := flag.String("root", "", "folder to serve")
	version := flag.Bool("version", false, "say the version")
	flag.Parse()
	if *version {
		fmt.Println(versions())
		return
	}
	if err := serve(*listen, *cert, *key, *root); err != nil {
		fmt.Fprintln(os.Stderr, "quicgo-server:", err)
		os.Exit(1)
	}
}

func serve(listen, cert, key, root string) error {
	certificate, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp", listen)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := errors(socket.SetReadBuffer(socketBuffer), socket.SetWriteBuffer(socketBuffer)); err != nil {
		return err
	}
	server := &http3.Server{
		Handler:    http.FileServer(http.Dir(root)),
		TLSConfig:  http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}}),
		QUICConfig: &quic.Config{MaxIncomingStreams: maxRequests, MaxIdleTimeout: 5 * time.Minute},
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(socket) }()
	select {
	case err := <-failed:
		return err
	case <-ended.Done():
		return server.Close()
	}
}

func errors(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "quic-go of an unknown version"
	}
	for _, dependency := range info.Deps {
		if dependency.Path == "github.com/quic-go/quic-go" {
			return "quic-go " + dependency.Version + ", " + info.GoVersion
		}
	}
	return "quic-go of an unknown version, " + info.GoVersion
}
