//! A place between one worker and the others, where connections can be cut or broken.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quelea_wire::control::{HEAD_BYTES, Reader, Writer, decode_head};

/// The connections of one worker's peers, on their way to it.
#[derive(Debug, Default)]
pub struct PeerDetour {
    is_cut: AtomicBool,
    /// Both sides of every connection.
    open: Mutex<Vec<TcpStream>>,
}

impl PeerDetour {
    /// From now on bytes are swallowed, as a firewall does.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Ends all present connections; what is on its way is lost. New ones are accepted.
    pub fn break_off(&self) {
        for stream in self.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Passes bytes on.
fn pass_on(mut from: TcpStream, mut to: TcpStream, detour: Arc<PeerDetour>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let is_cut = detour.is_cut.load(Ordering::SeqCst);
            if !is_cut && to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// A place through which one worker reaches the coordinator. It announces another port for the worker's
/// peers, whose connections then go through `peers`.
pub fn detour(coordinator: String, peers: Arc<PeerDetour>) -> String {
    let place = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = place.local_addr().expect("it listens").to_string();
    std::thread::spawn(move || {
        let (mut worker, _) = place.accept().expect("the worker comes");
        let mut coordinator = TcpStream::connect(coordinator).expect("it listens");
        let straight = Arc::new(PeerDetour::default());
        pass_on(copy(&coordinator), copy(&worker), Arc::clone(&straight));
        loop {
            let mut bytes = vec![0; HEAD_BYTES];
            worker.read_exact(&mut bytes).expect("a packet");
            let head = bytes[..].try_into().expect("a head");
            let head = decode_head(&head, 1 << 20).expect("a good head");
            let mut body = vec![0; head.length];
            worker.read_exact(&mut body).expect("its body");
            if head.kind == 5 {
                let port = Reader::new(head.kind, &body).number().expect("a port");
                let guarded = TcpListener::bind("127.0.0.1:0").expect("a free port");
                let own = guarded.local_addr().expect("it listens").port();
                coordinator.write_all(&Writer::default().number(own).packet(5)).expect("heard");
                pass_on(worker, coordinator, straight);
                return pass_peers(&guarded, port as u16, &peers);
            }
            bytes.extend(body);
            coordinator.write_all(&bytes).expect("it hears");
        }
    });
    address
}

fn pass_peers(guarded: &TcpListener, port: u16, peers: &Arc<PeerDetour>) {
    for peer in guarded.incoming() {
        let peer = peer.expect("a peer");
        // At the end of a run nobody listens there any more.
        let Ok(target) = TcpStream::connect(("127.0.0.1", port)) else { return };
        peers.open.lock().expect("no panic").extend([copy(&peer), copy(&target)]);
        pass_on(copy(&peer), copy(&target), Arc::clone(peers));
        pass_on(target, peer, Arc::clone(peers));
    }
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a socket")
}
