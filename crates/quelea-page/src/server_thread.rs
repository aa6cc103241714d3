//! A thread that serves HTTP and sleeps until somebody asks.

use std::io;
use std::net::TcpListener;
use std::thread::JoinHandle;

use axum::Router;
use tokio::sync::oneshot;

use crate::visitors::Visitors;

/// A running server; it ends when this is dropped.
pub(crate) struct ServerThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Serves `router` where `listener` listens.
    pub(crate) fn start(
        name: &str,
        listener: TcpListener,
        router: Router,
    ) -> io::Result<ServerThread> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || run(listener, router, stopped);
        let thread = std::thread::Builder::new().name(name.into()).spawn(serve)?;
        Ok(ServerThread { stop: Some(stop), thread: Some(thread) })
    }

    /// Serves until the process is ended.
    pub(crate) fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.wait();
    }
}

fn run(listener: TcpListener, router: Router, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // Without a runtime there is no server; the run does not depend on it.
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        tokio::select! {
            _ = axum::serve(Visitors::new(listener), router) => {}
            _ = stopped => {}
        }
    });
    // Streams of records have no end of their own.
    runtime.shutdown_background();
}
