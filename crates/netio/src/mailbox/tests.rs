use super::*;

/// Every interleaving of a worker going to sleep and senders pushing: nobody sleeps on a message.
#[cfg(loom)]
mod model {
    use super::super::wake::SleepFlag;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    struct World {
        flag: SleepFlag,
        queued: AtomicUsize,
        wakes: AtomicUsize,
    }

    fn model(senders: usize) {
        loom::model(move || {
            let world = Arc::new(World {
                flag: SleepFlag::new(),
                queued: AtomicUsize::new(0),
                wakes: AtomicUsize::new(0),
            });
            let threads: Vec<_> = (0..senders)
                .map(|_| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        world.queued.fetch_add(1, Ordering::Release);
                        if world.flag.take_sleeper() {
                            world.wakes.fetch_add(1, Ordering::Release);
                        }
                    })
                })
                .collect();
            let goes_on = world.flag.announce(|| world.queued.load(Ordering::Acquire) != 0);
            for thread in threads {
                thread.join().expect("a sender ends");
            }
            let wakes = world.wakes.load(Ordering::Acquire);
            assert!(goes_on || wakes != 0, "the worker sleeps and nobody wakes it");
            assert!(wakes <= 1, "one system call wakes it");
        });
    }

    #[test]
    fn a_sleeping_worker_is_woken_by_one_sender() {
        model(1);
    }

    #[test]
    fn a_sleeping_worker_is_woken_once_by_two_senders() {
        model(2);
    }
}

#[cfg(not(loom))]
mod behaviour {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(inbox: &Inbox<impl Send>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(inbox, PollFlags::IN)], Some(&now)).expect("an eventfd can be polled") == 1
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn messages_arrive_in_order_and_within_the_limit() {
        let (mailbox, mut inbox) = mailbox(8).expect("an eventfd");
        for number in 0..5 {
            mailbox.try_send(number).expect("there is room");
        }
        let mut seen = Vec::new();
        assert_eq!(inbox.drain(3, |number| seen.push(number)), 3);
        assert_eq!(inbox.drain(3, |number| seen.push(number)), 2);
        assert_eq!(inbox.drain(3, |number| seen.push(number)), 0);
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_full_queue_gives_the_message_back() {
        let (mailbox, mut inbox) = mailbox(2).expect("an eventfd");
        mailbox.try_send(1).expect("there is room");
        mailbox.try_send(2).expect("there is room");
        assert_eq!(mailbox.try_send(3), Err(Rejected::Full(3)));
        assert_eq!(inbox.drain(1, drop), 1);
        mailbox.try_send(3).expect("there is room again");
        assert_eq!(mailbox.len(), 2);
    }

    #[test]
    fn an_awake_worker_costs_no_system_call() {
        let (mailbox, mut inbox) = mailbox(8).expect("an eventfd");
        mailbox.try_send(1).expect("there is room");
        assert!(!is_readable(&inbox));
        assert!(inbox.prepare_sleep(), "a message waits");
        mailbox.try_send(2).expect("there is room");
        assert!(!is_readable(&inbox), "the announcement was withdrawn");
        inbox.drain(8, drop);
        assert!(!inbox.prepare_sleep());
        mailbox.try_send(3).expect("there is room");
        assert!(is_readable(&inbox));
        inbox.clear();
        mailbox.try_send(4).expect("there is room");
        assert!(!is_readable(&inbox), "the first sender woke the worker already");
    }

    #[test]
    fn a_wake_needs_no_message() {
        let (mailbox, mut inbox) = mailbox::<u8>(1).expect("an eventfd");
        mailbox.wake();
        assert!(is_readable(&inbox));
        inbox.clear();
        assert!(!is_readable(&inbox));
    }

    #[test]
    fn dropping_the_inbox_closes_and_drops_what_waits() {
        let (mailbox, inbox) = mailbox(4).expect("an eventfd");
        let content = Arc::new(());
        mailbox.try_send(Arc::clone(&content)).expect("there is room");
        drop(inbox);
        assert_eq!(Arc::strong_count(&content), 1);
        assert!(mailbox.is_closed());
        let rejected = mailbox.try_send(Arc::clone(&content)).expect_err("it is closed");
        assert!(matches!(rejected, Rejected::Closed(_)));
        assert_eq!(format!("{rejected}"), "the worker has ended");
        assert!(Arc::ptr_eq(&rejected.into_message(), &content));
    }

    #[test]
    fn a_waiting_sender_gets_room() {
        let (mailbox, mut inbox) = mailbox(1).expect("an eventfd");
        let sender = std::thread::spawn(move || {
            for number in 0..10_000 {
                mailbox.send_until(number, far()).expect("the worker makes room");
            }
        });
        let mut expected = 0;
        while expected < 10_000 {
            inbox.drain(1, |number| {
                assert_eq!(number, expected);
                expected += 1;
            });
        }
        sender.join().expect("the sender ends");
    }

    #[test]
    fn a_waiting_sender_gives_up_at_its_deadline() {
        let (mailbox, _inbox) = mailbox(1).expect("an eventfd");
        mailbox.try_send(1).expect("there is room");
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(mailbox.send_until(2, soon), Err(Rejected::Full(2)));
        assert!(Instant::now() >= soon);
        assert_eq!(mailbox.shared.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_waiting_sender_sees_the_end() {
        let (mailbox, inbox) = mailbox(1).expect("an eventfd");
        mailbox.try_send(1).expect("there is room");
        let waiting = mailbox.clone();
        let sender = std::thread::spawn(move || waiting.send_until(2, far()));
        while mailbox.shared.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(inbox);
        assert_eq!(sender.join().expect("the sender ends"), Err(Rejected::Closed(2)));
    }

    #[test]
    fn no_message_is_slept_on() {
        const SENDERS: u64 = 3;
        const EACH: u64 = 20_000;
        let (mailbox, mut inbox) = mailbox(64).expect("an eventfd");
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        mailbox.send_until(number, far()).expect("the worker makes room");
                    }
                })
            })
            .collect();
        let (mut count, mut sum) = (0, 0);
        while count < SENDERS * EACH {
            count += inbox.drain(16, |number| sum += number) as u64;
            if count < SENDERS * EACH && !inbox.prepare_sleep() {
                // A lost wake-up ends here, as nothing else does within a minute.
                let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
                let woken = poll(&mut [PollFd::new(&inbox, PollFlags::IN)], Some(&minute));
                assert_eq!(woken.expect("an eventfd can be polled"), 1, "nobody woke the worker");
                inbox.awake();
                inbox.clear();
            }
        }
        assert_eq!(sum, SENDERS * (EACH * (EACH - 1) / 2));
        for sender in senders {
            sender.join().expect("a sender ends");
        }
    }
}
