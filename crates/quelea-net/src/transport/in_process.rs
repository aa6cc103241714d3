//! Ranks of one process: messages change hands through a channel, and their vectors stay where they are.

use std::io;
use std::net::TcpStream;
use std::rc::Rc;

use quelea_core::message::{Message, Rank};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{AttachContext, Attached, FrameSink, Link, LinkError, RankEndpoint};

/// A message on its way from one rank of this process to another.
#[derive(Debug)]
struct LocalFrame {
    from: Rank,
    sent_micros: u32,
    message: Message,
}

/// One rank's ways to the others of this process.
#[derive(Debug)]
struct LocalEndpoint {
    peers: Vec<(Rank, UnboundedSender<LocalFrame>)>,
    incoming: UnboundedReceiver<LocalFrame>,
}

/// Connects `ranks` with each other; one endpoint for each, in their order.
pub(crate) fn connect(ranks: &[Rank]) -> Vec<Box<dyn RankEndpoint>> {
    let (senders, receivers): (Vec<_>, Vec<_>) = ranks.iter().map(|_| unbounded_channel()).unzip();
    let all = || ranks.iter().copied().zip(senders.iter().cloned());
    let endpoint = |(incoming, own): (_, &Rank)| {
        let peers = all().filter(|(peer, _)| peer != own).collect();
        Box::new(LocalEndpoint { peers, incoming }) as Box<dyn RankEndpoint>
    };
    receivers.into_iter().zip(ranks).map(endpoint).collect()
}

impl RankEndpoint for LocalEndpoint {
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached> {
        let LocalEndpoint { peers, incoming } = *self;
        let from = context.rank;
        let link = |(peer, frames)| (peer, Rc::new(LocalLink { from, frames }) as Rc<dyn Link>);
        Ok(Attached {
            links: peers.into_iter().map(link).collect(),
            tasks: vec![Box::new(|sink| Box::pin(deliver(incoming, sink)))],
        })
    }

    fn socket(&self, _peer: Rank) -> Option<&TcpStream> {
        None
    }
}

/// Hands over what comes from all ranks of this process.
async fn deliver(mut incoming: UnboundedReceiver<LocalFrame>, sink: Rc<dyn FrameSink>) {
    while let Some(LocalFrame { from, sent_micros, message }) = incoming.recv().await {
        if let Err(reason) = sink.frame(from, sent_micros, message) {
            sink.ended(from, LinkError::Refused(reason));
        }
    }
}

#[derive(Debug)]
struct LocalLink {
    from: Rank,
    frames: UnboundedSender<LocalFrame>,
}

impl Link for LocalLink {
    fn push(&self, sent_micros: u32, message: Message) {
        // A rank that has ended is known to the controller.
        let _ = self.frames.send(LocalFrame { from: self.from, sent_micros, message });
    }

    /// There is nothing left to send.
    fn flush(&self) -> Result<(), LinkError> {
        if self.frames.is_closed() { Err(LinkError::Closed) } else { Ok(()) }
    }
}
