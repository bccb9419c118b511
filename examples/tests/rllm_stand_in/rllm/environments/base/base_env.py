class BaseEnv:
    idx = None
