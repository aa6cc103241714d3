//! What the page's server and its client read from the network, as functions of the bytes: for fuzzing. This is no
//! part of the interface.

use std::io;
use std::sync::Arc;

use axum::serve::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::client;
use crate::description::RunDescription;
use crate::log::RunLog;
use crate::server::local_router;

/// What is on its way in one direction.
const PIPE_BYTES: usize = 256 << 10;

/// A server of the page without a network.
#[derive(Debug)]
pub struct PipedServer {
    runtime: Runtime,
    visitors: UnboundedSender<DuplexStream>,
}

struct Pipes(UnboundedReceiver<DuplexStream>);

impl Listener for Pipes {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.recv().await {
            Some(pipe) => (pipe, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

impl PipedServer {
    /// Of a run that has ended, open to everybody who is on this machine.
    pub fn new() -> io::Result<PipedServer> {
        let log = RunLog::recorded(RunDescription::of_config(serde_json::json!({}), "run"), 1);
        log.close();
        let router = local_router(Arc::new(log), None).map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (visitors, pipes) = unbounded_channel();
        runtime.spawn(async move { axum::serve(Pipes(pipes), router).await });
        Ok(PipedServer { runtime, visitors })
    }

    /// What it answers to a connection over which exactly these bytes come.
    pub fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let (mut near, far) = duplex(PIPE_BYTES);
        if self.visitors.send(far).is_err() {
            return Vec::new();
        }
        self.runtime.block_on(async {
            let mut answer = Vec::new();
            // A server that has closed the connection need not have read everything.
            let _ = near.write_all(bytes).await;
            let _ = near.shutdown().await;
            let _ = near.read_to_end(&mut answer).await;
            answer
        })
    }
}

/// What a server has answered to the client in a terminal; whether it was understood.
pub fn client_answer(bytes: &[u8]) -> bool {
    client::parse("127.0.0.1:8600", bytes).is_ok()
}
