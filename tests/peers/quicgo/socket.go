package main

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a UDP socket whose local port changes underneath QUIC, as behind a NAT that forgets. It hides
// the socket's descriptor, so quic-go sets no options: the kernel fragments what exceeds the route's MTU.
type socket struct {
	network  string
	every    int64
	received atomic.Int64
	rebinds  atomic.Int64

	mutex    sync.Mutex
	current  net.PacketConn
	deadline time.Time
	closed   bool
}

// newSocket makes one for a server's address family that changes its port every so many received bytes.
func newSocket(server *net.UDPAddr, every int64) (*socket, error) {
	network := "udp6"
	if server.IP.To4() != nil {
		network = "udp4"
	}
	conn, err := net.ListenPacket(network, ":0")
	if err != nil {
		return nil, err
	}
	return &socket{network: network, every: every, current: conn}, nil
}

func (s *socket) conn() (net.PacketConn, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.current, s.closed
}

func (s *socket) ReadFrom(buffer []byte) (int, net.Addr, error) {
	for {
		conn, closed := s.conn()
		length, from, err := conn.ReadFrom(buffer)
		if now, _ := s.conn(); err != nil && !closed && now != conn {
			continue // closed by rebind: read from its successor
		}
		if err != nil {
			return length, from, err
		}
		before := s.received.Load()
		after := s.received.Add(int64(length))
		if s.every > 0 && before/s.every != after/s.every {
			if err := s.rebind(); err != nil {
				return 0, nil, err
			}
		}
		return length, from, nil
	}
}

func (s *socket) rebind() error {
	next, err := net.ListenPacket(s.network, ":0")
	if err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return next.Close()
	}
	if err := next.SetReadDeadline(s.deadline); err != nil {
		return err
	}
	s.rebinds.Add(1)
	previous := s.current
	s.current = next
	return previous.Close()
}

func (s *socket) WriteTo(packet []byte, to net.Addr) (int, error) {
	for {
		conn, closed := s.conn()
		length, err := conn.WriteTo(packet, to)
		if now, _ := s.conn(); err != nil && !closed && now != conn {
			continue
		}
		if errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETDOWN) {
			return len(packet), nil // the link is away: a lost packet, for QUIC to send again
		}
		return length, err
	}
}

func (s *socket) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	return s.current.Close()
}

func (s *socket) LocalAddr() net.Addr {
	conn, _ := s.conn()
	return conn.LocalAddr()
}

func (s *socket) SetReadDeadline(t time.Time) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.deadline = t
	return s.current.SetReadDeadline(t)
}

func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

func (s *socket) SetWriteDeadline(time.Time) error { return nil }
