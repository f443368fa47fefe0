package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

type response struct {
	Path         string `json:"path"`
	Range        string `json:"range,omitempty"`
	Status       int    `json:"status"`
	ContentRange string `json:"content_range,omitempty"`
	Bytes        int64  `json:"bytes"`
	SHA256       string `json:"sha256"`
}

// client is one HTTP/3 connection on a socket of its own.
type client struct {
	options    *options
	socket     *socket
	transport  *quic.Transport
	conn       *quic.Conn
	http       *http3.ClientConn
	extra      []*quic.Transport
	migrations int
}

func dial(ctx context.Context, o *options, trust *tls.Config) (*client, error) {
	server, err := net.ResolveUDPAddr("udp", o.connect)
	if err != nil {
		return nil, err
	}
	socket, err := newSocket(server, o.rebindEvery)
	if err != nil {
		return nil, err
	}
	tlsConfig := trust.Clone()
	tlsConfig.NextProtos = []string{http3.NextProtoH3}
	config := &quic.Config{
		InitialPacketSize:    uint16(o.packetSize),
		MaxIdleTimeout:       o.timeout,
		HandshakeIdleTimeout: o.timeout,
	}
	if o.rebindEvery > 0 {
		// As browsers do. Who only receives has nothing to send again: if the one packet that tells the server of the new
		// port is lost, the server never learns of it.
		config.KeepAlivePeriod = time.Second
	}
	transport := &quic.Transport{Conn: socket}
	conn, err := transport.Dial(ctx, server, tlsConfig, config)
	if err != nil {
		transport.Close()
		socket.Close()
		return nil, err
	}
	c := &client{options: o, socket: socket, transport: transport, conn: conn}
	c.http = (&http3.Transport{}).NewClientConn(conn)
	return c, nil
}

func (c *client) close() {
	c.conn.CloseWithError(0x100, "") // H3_NO_ERROR
	for _, transport := range c.extra {
		transport.Close()
	}
	c.transport.Close()
	c.socket.Close()
}

func (c *client) get(ctx context.Context, path, span string) (response, error) {
	result := response{Path: path, Range: span}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.options.name+path, nil)
	if err != nil {
		return result, err
	}
	if span != "" {
		request.Header.Set("Range", "bytes="+span)
	}
	answer, err := c.http.RoundTrip(request)
	if err != nil {
		return result, err
	}
	defer answer.Body.Close()
	result.Status = answer.StatusCode
	result.ContentRange = answer.Header.Get("Content-Range")
	hash := sha256.New()
	if at := c.options.migrateAt; at > 0 && c.migrations == 0 {
		result.Bytes, err = io.CopyN(hash, answer.Body, at)
		if err != nil {
			return result, fmt.Errorf("the body ends before the migration: %w", err)
		}
		if err := c.migrate(ctx); err != nil {
			return result, fmt.Errorf("migration: %w", err)
		}
	}
	length, err := io.Copy(hash, answer.Body)
	result.Bytes += length
	result.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return result, err
}

// migrate moves the connection to a new socket as a client does that changes networks: it probes the new
// path, and goes on there with a new connection ID.
func (c *client) migrate(ctx context.Context) error {
	server := c.conn.RemoteAddr().(*net.UDPAddr)
	socket, err := newSocket(server, 0)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket}
	c.extra = append(c.extra, transport)
	path, err := c.conn.AddPath(transport)
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return err
	}
	if err := path.Switch(); err != nil {
		return err
	}
	c.migrations++
	return nil
}

func (c *client) round(ctx context.Context) ([]response, error) {
	var responses []response
	paths := list(c.options.paths)
	for _, path := range paths {
		result, err := c.get(ctx, path, "")
		if err != nil {
			return responses, err
		}
		responses = append(responses, result)
	}
	for _, span := range list(c.options.ranges) {
		result, err := c.get(ctx, paths[0], span)
		if err != nil {
			return responses, err
		}
		responses = append(responses, result)
	}
	return responses, nil
}

// untilTold repeats rounds until a line comes in, and makes one more. Equal responses make one.
func (c *client) untilTold(ctx context.Context) ([]response, error) {
	var responses []response
	told := told()
	for last := false; ; {
		round, err := c.round(ctx)
		if err != nil {
			return responses, errors.Join(err, context.Cause(c.conn.Context()))
		}
		responses = distinct(responses, round)
		if last {
			return responses, nil
		}
		select {
		case <-told:
			last = true
		default:
		}
	}
}

func one(o *options, trust *tls.Config) (*report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	result := &report{}
	c, err := dial(ctx, o, trust)
	if err != nil {
		return result, err
	}
	defer c.close()
	result.Connections = 1
	if o.untilTold {
		result.Responses, err = c.untilTold(ctx)
	} else {
		result.Responses, err = c.round(ctx)
	}
	if err == nil && o.pause {
		if err = pause(); err == nil {
			var again []response
			again, err = c.round(ctx)
			if err != nil {
				// HTTP/3 says that it could not; QUIC knows why.
				err = errors.Join(err, context.Cause(c.conn.Context()))
			}
			result.Responses = append(result.Responses, again...)
		}
	}
	result.Rebinds, result.Migrations = int(c.socket.rebinds.Load()), c.migrations
	if err == nil {
		result.Complete = 1
	}
	return result, err
}

// many opens all connections before it asks anything on any of them.
func many(o *options, trust *tls.Config) (*report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	var (
		mutex   sync.Mutex
		clients []*client
		done    sync.WaitGroup
		result  = &report{Errors: map[string]int{}}
	)
	failed := func(stage string, err error) {
		mutex.Lock()
		defer mutex.Unlock()
		result.Errors[stage+": "+err.Error()]++
	}
	for range o.connections {
		done.Go(func() {
			c, err := dial(ctx, o, trust)
			if err != nil {
				failed("dial", err)
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			clients = append(clients, c)
		})
	}
	done.Wait()
	result.Connections = len(clients)
	for _, c := range clients {
		done.Go(func() {
			responses, err := c.round(ctx)
			if err != nil {
				failed("get", err)
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			result.Complete++
			result.Responses = distinct(result.Responses, responses)
		})
	}
	done.Wait()
	for _, c := range clients {
		c.close()
	}
	if result.Complete != o.connections {
		return result, fmt.Errorf("%d of %d connections were served", result.Complete, o.connections)
	}
	return result, nil
}

// distinct adds those of `more` that `known` lacks: a thousand equal responses make one line.
func distinct(known, more []response) []response {
next:
	for _, candidate := range more {
		for _, response := range known {
			if response == candidate {
				continue next
			}
		}
		known = append(known, candidate)
	}
	return known
}
