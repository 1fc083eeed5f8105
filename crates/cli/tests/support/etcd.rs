//! A real etcd on ports of its own, as Debian's `etcd-server` has it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{Folder, eventually, free_port};

/// An etcd that ends with the test.
pub struct Etcd {
    ports: [u16; 2],
    scheme: &'static str,
    data: PathBuf,
    server: Option<Child>,
}

impl Etcd {
    /// Starts an etcd with its data in the folder. Without the program there is none, which is said.
    pub fn start(folder: &Folder) -> Option<Etcd> {
        Etcd::of_scheme(folder, "http")
    }

    /// Starts an etcd whose clients use `http` or `https`.
    pub fn of_scheme(folder: &Folder, scheme: &'static str) -> Option<Etcd> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: there is no etcd on this machine (Debian's etcd-server)");
            return None;
        }
        let ports = [free_port(), free_port()];
        let mut etcd = Etcd { ports, scheme, data: folder.path().join("etcd"), server: None };
        etcd.restart();
        Some(etcd)
    }

    /// Starts the server, with the data that it had.
    pub fn restart(&mut self) {
        let [client, peer] = self.ports;
        let (client, peer) =
            (format!("{}://127.0.0.1:{client}", self.scheme), format!("http://127.0.0.1:{peer}"));
        let log = std::fs::File::create(self.data.with_extension("log")).unwrap();
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        if self.scheme == "https" {
            command.arg("--auto-tls");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(command.spawn().unwrap());
        match self.scheme {
            "http" => eventually(|| {
                self.post("kv/range", r#"{"key":"YQ=="}"#).filter(|it| it.contains("raft_term"))
            }),
            _ => eventually(|| TcpStream::connect(self.server()).ok().map(|_| String::new())),
        };
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Its address for clients.
    pub fn server(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// The store of a job.
    pub fn store(&self, job: &str) -> String {
        format!("etcd://{}/{job}", self.server())
    }

    /// Sends it a request; none if it does not answer.
    pub fn post(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.server()).ok()?;
        let head = format!("POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
