//! The way to the core task. What waits there is bounded by its number and by its bytes: a client may send faster than
//! the core task takes, and each message may have some MiB. What comes from replicas waits apart, within bounds of its
//! own: so clients that fill theirs hold up neither the chain nor other regions.

use std::sync::Arc;

use tailwater_broadcast::message::{FRAME_BYTES_MAX, Message, Role};
use tailwater_broadcast::replica::{ConnectionId, Peer, size_of_message};
use tokio::sync::mpsc::{self, error::SendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ReplicaInput;

/// Bytes of all messages of clients that wait, and as many of replicas; readers pause beyond it.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of one connection's messages that wait; its reader pauses beyond it.
const CONNECTION_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// For all connections.
#[derive(Clone)]
pub(crate) struct Inputs {
    of_clients: Way,
    of_replicas: Way,
}

#[derive(Clone)]
struct Way {
    queue: mpsc::Sender<ReplicaInput>,
    room: Arc<Semaphore>,
}

/// For one of them.
pub(crate) struct Intake {
    all: Way,
    room: Arc<Semaphore>,
}

/// What a message takes until it was run.
pub(crate) struct InputsRoom {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Inputs {
    pub(crate) fn new(
        of_clients: mpsc::Sender<ReplicaInput>,
        of_replicas: mpsc::Sender<ReplicaInput>,
    ) -> Self {
        let way = |queue| Way { queue, room: Arc::new(Semaphore::new(BYTES_MAX)) };
        Self { of_clients: way(of_clients), of_replicas: way(of_replicas) }
    }

    pub(crate) fn of_connection(&self, peer: &Peer) -> Intake {
        let all = match peer {
            Peer::In(_, Role::Client(_)) => &self.of_clients,
            Peer::In(_, Role::Replica(_)) | Peer::Out(..) => &self.of_replicas,
        };
        Intake { all: all.clone(), room: Arc::new(Semaphore::new(CONNECTION_BYTES_MAX)) }
    }
}

impl Intake {
    /// Something of a few bytes.
    pub(crate) async fn send(&self, input: ReplicaInput) -> Result<(), SendError<ReplicaInput>> {
        self.all.queue.send(input).await
    }

    /// A message, once there is room for it; whether the replica has not ended.
    pub(crate) async fn message(&self, id: ConnectionId, message: Message) -> bool {
        let bytes = size_of_message(&message).min(CONNECTION_BYTES_MAX) as u32;
        let own = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let of_all = Arc::clone(&self.all.room).acquire_many_owned(bytes).await;
        let (Ok(own), Ok(of_all)) = (own, of_all) else { return false };
        let room = InputsRoom { _own: own, _of_all: of_all };
        self.send(ReplicaInput::Message(id, message, room)).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use tailwater_broadcast::name::Stream;
    use tailwater_broadcast::{Content, Writer};

    use super::*;

    fn publish(bytes: usize) -> Message {
        let mut events = Writer::new(0);
        let content = Content { payload: Bytes::from(vec![0; bytes]), ..Content::default() };
        events.publish(&content, None).unwrap();
        let stream = Stream::parse("here/news").unwrap();
        Message::Publish { stream, client: 1, answered: 0, first: 1, batch: events.finish(0) }
    }

    /// Sends as many messages of 1 MiB as there is room for; how many those were.
    fn fill(intake: &Intake) -> usize {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let sent = |_: &usize| {
            let message = publish(1 << 20);
            pin!(intake.message(1, message)).poll(&mut context) == Poll::Ready(true)
        };
        (0..1_000).take_while(sent).count()
    }

    fn client() -> Peer {
        Peer::In("client".to_owned(), Role::Client(1))
    }

    #[test]
    fn what_waits_for_the_core_task_is_bounded_in_bytes_for_each_connection_and_for_all() {
        let (queue, mut queued) = mpsc::channel(1_000);
        let inputs = Inputs::new(queue.clone(), queue);
        let first = inputs.of_connection(&client());
        assert_eq!(fill(&first), 7);
        let others: Vec<Intake> = (0..20).map(|_| inputs.of_connection(&client())).collect();
        assert_eq!(others.iter().map(fill).sum::<usize>() + 7, 63);
        // One of the first connection's is run: there is room for one of its own.
        drop(queued.try_recv().unwrap());
        assert_eq!((fill(&first), fill(&others[0])), (1, 0));
        let mut left = 0;
        while queued.try_recv().is_ok() {
            left += 1;
        }
        assert_eq!((left, fill(&first)), (63, 7));
    }

    #[test]
    fn replicas_have_room_whatever_waits_of_clients_and_the_other_way_round() {
        let replicas = [
            Peer::Out("here".to_owned(), 2),
            Peer::In("here".to_owned(), Role::Replica(2)),
            Peer::In("there".to_owned(), Role::Replica(3)),
        ];
        // By bytes.
        let ((of_clients, _clients), (of_replicas, _replicas)) = (mpsc::channel(1_000), mpsc::channel(1_000));
        let inputs = Inputs::new(of_clients, of_replicas);
        let clients: Vec<Intake> = (0..20).map(|_| inputs.of_connection(&client())).collect();
        assert_eq!(clients.iter().map(fill).sum::<usize>(), 63);
        for peer in &replicas {
            assert_eq!(fill(&inputs.of_connection(peer)), 7, "{peer:?}");
        }
        let more: Vec<Intake> = (0..20).map(|_| inputs.of_connection(&replicas[0])).collect();
        assert_eq!(more.iter().map(fill).sum::<usize>() + 3 * 7, 63);
        // By number.
        let ((of_clients, mut clients), (of_replicas, mut replicas_)) = (mpsc::channel(5), mpsc::channel(3));
        let inputs = Inputs::new(of_clients, of_replicas);
        assert_eq!(fill(&inputs.of_connection(&client())), 5);
        assert_eq!(fill(&inputs.of_connection(&replicas[1])), 3);
        while clients.try_recv().is_ok() {}
        assert_eq!(fill(&inputs.of_connection(&client())), 5);
        assert_eq!(fill(&inputs.of_connection(&replicas[2])), 0);
        assert!(replicas_.try_recv().is_ok());
    }
}
