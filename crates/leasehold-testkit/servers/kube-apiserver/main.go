// A kube-apiserver with its etcd, in one process group that starts and ends together, for tests.
//
//	kube-apiserver ADDRESS FOLDER ETCD
//
// ETCD is the program of etcd. FOLDER has the data, and a kubeconfig for the real server, which speaks TLS. ADDRESS, a
// HOST:PORT, is opened as soon as the server is ready. It forwards plain HTTP to the server, as the user "admin" unless a
// request has its own token: tests count requests there, and lose them.
//
// k8s.io/kubernetes cannot be installed with `go install`, so this is a separate module.
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// The users, by their tokens. Admins may do everything; the others what a test allows them.
const users = "admin-token,admin,admin,system:masters\nlesser-token,lesser,lesser\nother-token,other,other\n"

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: kube-apiserver ADDRESS FOLDER ETCD")
	}
	address, folder, etcd := os.Args[1], os.Args[2], os.Args[3]
	// etcd is killed when the thread that started it ends.
	runtime.LockOSThread()
	clients, peers, secure := freeURL(), freeURL(), freePort()
	database := exec.Command(etcd, "--data-dir", filepath.Join(folder, "etcd"), "--log-level", "error",
		"--unsafe-no-fsync", "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	database.Stdout, database.Stderr = os.Stderr, os.Stderr
	database.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(database.Start())
	file := func(name string) string { return filepath.Join(folder, name) }
	check(os.WriteFile(file("users.csv"), []byte(users), 0o600))
	check(writeKey(file("service-accounts.pem")))
	check(writeClientCertificate(folder))
	go serve(address, secure, folder)
	server := app.NewAPIServerCommand()
	server.SetArgs([]string{
		"--etcd-servers=" + clients, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port=" + secure, "--cert-dir=" + file("certificates"), "--token-auth-file=" + file("users.csv"),
		"--service-account-key-file=" + file("service-accounts.pem"),
		"--service-account-signing-key-file=" + file("service-accounts.pem"),
		"--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
		"--client-ca-file=" + file("client-ca.pem"),
		"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount",
	})
	os.Exit(cli.Run(server))
}

// serve waits until the server is ready, writes the kubeconfig, and forwards plain HTTP.
func serve(address, secure, folder string) {
	certificates := filepath.Join(folder, "certificates", "apiserver.crt")
	var pool *x509.CertPool
	var transport *http.Transport
	for {
		if text, err := os.ReadFile(certificates); err == nil {
			pool = x509.NewCertPool()
			pool.AppendCertsFromPEM(text)
			transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, MaxIdleConnsPerHost: 64}
			if isReady(transport, secure) {
				check(writeKubeconfig(filepath.Join(folder, "kubeconfig"), secure, text))
				break
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "127.0.0.1:" + secure})
	proxy.Transport = transport
	proxy.FlushInterval = -1 // Watches are sent piece by piece.
	proxy.ModifyResponse = withLength
	direct := proxy.Director
	proxy.Director = func(request *http.Request) {
		direct(request)
		if request.Header.Get("Authorization") == "" {
			request.Header.Set("Authorization", "Bearer admin-token")
		}
	}
	check(http.ListenAndServe(address, proxy))
}

// withLength gives responses other than watches a length instead of chunks, for clients that read no chunks.
func withLength(answer *http.Response) error {
	if answer.ContentLength >= 0 || answer.Request.URL.Query().Has("watch") {
		return nil
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	answer.ContentLength = int64(len(body))
	answer.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return err
}

func isReady(transport *http.Transport, secure string) bool {
	request, err := http.NewRequest("GET", "https://127.0.0.1:"+secure+"/readyz", nil)
	check(err)
	request.Header.Set("Authorization", "Bearer admin-token")
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func writeKubeconfig(path, secure string, authorities []byte) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: admin
clusters:
- name: tests
  cluster:
    server: https://127.0.0.1:%s
    certificate-authority-data: %s
users:
- name: admin
  user: {token: admin-token}
- name: lesser
  user: {token: lesser-token}
- name: certificate
  user: {client-certificate: client.pem, client-key: client.key}
contexts:
- name: admin
  context: {cluster: tests, user: admin}
- name: lesser
  context: {cluster: tests, user: lesser}
- name: certificate
  context: {cluster: tests, user: certificate}
`, secure, base64.StdEncoding.EncodeToString(authorities))
	return os.WriteFile(path, []byte(text), 0o600)
}

// writeKey makes the key that signs the tokens of service accounts, unless it is there.
func writeKey(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, text, err := newKey()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// newKey returns a key, and its text in PEM.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	text, err := x509.MarshalECPrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), err
}

// writeClientCertificate makes an authority, and a certificate by it for the user "lesser".
func writeClientCertificate(folder string) error {
	authorityKey, _, err := newKey()
	if err != nil {
		return err
	}
	key, keyText, err := newKey()
	if err != nil {
		return err
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(48*time.Hour)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	client := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "lesser"}, NotBefore: from, NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	write := func(name string, template *x509.Certificate, key *ecdsa.PrivateKey) error {
		bytes, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), authorityKey)
		if err != nil {
			return err
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes})
		return os.WriteFile(filepath.Join(folder, name), text, 0o600)
	}
	return errors.Join(write("client-ca.pem", authority, authorityKey), write("client.pem", client, key),
		os.WriteFile(filepath.Join(folder, "client.key"), keyText, 0o600))
}

func freeURL() string { return "http://127.0.0.1:" + freePort() }

func freePort() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	check(err)
	return port
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
